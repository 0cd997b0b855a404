//! Selectors of devices: expressions in CEL, compiled once and evaluated per device.
//!
//! The crate `cel` parses and evaluates. What Kubernetes adds is in [`values`]: the variable `device`,
//! quantities and semantic versions; what an evaluation may cost is estimated beforehand, in [`cost`].
//! Never evaluates an expression that could take long, or a function that is unknown.

mod cost;
mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{Context, DeclarationError, Env, Program, Value};

pub(super) use values::DeviceVariable;

/// The length of an expression in bytes, as the API server limits it.
const LENGTH_MAX: usize = 10 * 1024;
/// Brackets within brackets.
const BRACKETS_MAX: usize = 64;
/// Operators and selections of an expression: a chain of them is as deep as it is long.
const OPERATORS_MAX: usize = 512;

/// The stack to parse and evaluate on; what is accepted needs a fraction of it.
const STACK_BYTES: usize = 64 << 20;

static ENVIRONMENT: LazyLock<Result<Arc<Env>, String>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings)
        .and_then(|()| env.add_extension(values::extension))
        .and_then(|()| env.add_macro(Macro::receiver("bind", 3, expand_bind)))
        .map_err(|error: DeclarationError| error.to_string())?;
    Ok(Arc::new(env))
});

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Expression(Program);

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Why it is not usable, in one line.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        check_text(source)?;
        on_large_stack(|| parse(source)).and_then(|it| it).map(Self)
    }

    /// Whether a device matches. To be called within [`on_large_stack`].
    ///
    /// # Errors
    /// Why that cannot be evaluated, in one line.
    pub(super) fn matches(&self, device: DeviceVariable) -> Result<bool, String> {
        let env = ENVIRONMENT.as_ref().map_err(Clone::clone)?;
        let mut context = Context::with_env(Arc::clone(env));
        context.add_variable_as_val("device", Box::new(device));
        let result = catch_unwind(AssertUnwindSafe(|| self.0.execute(&context)));
        match result {
            Ok(Ok(Value::Bool(matches))) => Ok(matches),
            Ok(Ok(_)) => Err("it does not evaluate to a bool".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the evaluation failed".to_owned()),
        }
    }
}

/// Runs something that recurses with a stack of its own. The parser and the interpreter are not ours:
/// whatever they do with an odd text, the scheduler goes on.
///
/// # Errors
/// When there is no thread, or it panicked.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| error.to_string())?;
        thread.join().map_err(|_| "the evaluation failed".to_owned())
    })
}

fn parse(source: &str) -> Result<Program, String> {
    let env = ENVIRONMENT.as_ref().map_err(Clone::clone)?;
    let program = env.compile(source).map_err(|errors| {
        let first = errors.errors.into_iter().next().map(|it| it.msg);
        first.unwrap_or_else(|| "it is not an expression".to_owned())
    })?;
    cost::check(program.expression())?;
    Ok(program)
}

/// Bounds what the parser has to handle.
fn check_text(source: &str) -> Result<(), String> {
    if source.len() > LENGTH_MAX {
        return Err(format!("it has {} bytes; accepted: at most {LENGTH_MAX}", source.len()));
    }
    let (mut depth, mut deepest, mut operators) = (0_usize, 0, 0);
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for letter in source.chars() {
        if let Some(end) = quote {
            if !escaped && letter == end {
                quote = None;
            }
            escaped = !escaped && letter == '\\';
            continue;
        }
        match letter {
            '"' | '\'' => quote = Some(letter),
            '(' | '[' | '{' => {
                depth += 1;
                operators += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '+' | '-' | '*' | '/' | '%' | '!' | '.' | '?' | '<' | '>' | '=' | '&' | '|' => {
                operators += 1;
            }
            _ => {}
        }
    }
    if deepest > BRACKETS_MAX {
        return Err(format!("it nests {deepest} brackets; accepted: at most {BRACKETS_MAX}"));
    }
    if operators > OPERATORS_MAX {
        return Err(format!("it has {operators} operators; accepted: at most {OPERATORS_MAX}"));
    }
    Ok(())
}

/// Expands `cel.bind(name, value, expression)`: a loop over nothing, whose accumulator is the variable.
fn expand_bind(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    let is_cel =
        matches!(target.as_ref().map(|it| &it.expr), Some(Expr::Ident(name)) if name == "cel");
    let [name, _, _] = args.as_slice() else { return Ok(None) };
    if !is_cel {
        return Ok(None);
    }
    let Expr::Ident(variable) = name.expr.clone() else {
        return Err(helper.new_error(name.id, "the first argument of cel.bind() must be a name"));
    };
    let (result, value) = (args.pop().unwrap_or_default(), args.pop().unwrap_or_default());
    let literal = |value: bool| Expr::Literal(LiteralValue::Boolean(value.into()));
    let loop_ = ComprehensionExpr {
        iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: variable.clone(),
        accu_init: value,
        loop_cond: helper.next_expr(literal(false)),
        loop_step: helper.next_expr(Expr::Ident(variable)),
        result,
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(loop_)))))
}

#[cfg(test)]
mod tests;
