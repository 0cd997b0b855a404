//! What an evaluation may cost at most, estimated from the expression alone.
//!
//! Users write selectors, and the scheduler evaluates them for every device. The API server limits what
//! an expression costs; the crate that evaluates has no limit, so that expressions are checked before.
//! Estimates are upper bounds: sizes of values are bounded by what a device can have.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

/// The highest cost that is accepted.
const COST_MAX: u64 = 1_000_000;
/// Expressions within expressions.
const DEPTH_MAX: usize = 64;
/// The most elements of any list or map of a device.
const DEVICE_COUNT: u64 = 64;
/// More characters and elements than any attribute of a device has.
const DEVICE_WEIGHT: u64 = 4096;
/// What it costs to compile a regular expression.
const PATTERN_COST: u64 = 500;

/// Functions that are known, and do what the same functions do in Kubernetes.
const FUNCTIONS: [&str; 72] = [
    "_?_:_",
    "_&&_",
    "_||_",
    "!_",
    "_-_",
    "_+_",
    "_*_",
    "_/_",
    "_%_",
    "_==_",
    "_!=_",
    "_>=_",
    "_<=_",
    "_>_",
    "_<_",
    "-_",
    "_[_]",
    "_[?_]",
    "_?._",
    "@not_strictly_false",
    "@in",
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "type",
    "dyn",
    "of",
    "none",
    "ofNonZeroValue",
    "hasValue",
    "value",
    "or",
    "orValue",
    "charAt",
    "indexOf",
    "lastIndexOf",
    "join",
    "lowerAscii",
    "upperAscii",
    "replace",
    "split",
    "substring",
    "trim",
    "reverse",
    "quantity",
    "isQuantity",
    "isInteger",
    "asInteger",
    "sign",
    "add",
    "sub",
    "isLessThan",
    "isGreaterThan",
    "compareTo",
    "semver",
    "isSemver",
    "major",
    "minor",
    "patch",
    "optional.of",
    "optional.none",
    "optional.ofNonZeroValue",
    "has",
    "optMap",
    "optFlatMap",
];

/// The cost of an expression, and how large its value can be.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    cost: u64,
    /// Elements to loop over.
    count: u64,
    /// Characters and elements, including those of its elements.
    weight: u64,
}

impl Estimate {
    const SCALAR: Self = Self { cost: 1, count: 1, weight: 1 };

    fn plus_cost(self, cost: u64) -> Self {
        Self { cost: self.cost.saturating_add(cost), ..self }
    }
}

/// Variables and the estimates of their values.
type Scope = Vec<(String, Estimate)>;

/// Checks an expression.
///
/// # Errors
/// Why it is not accepted: its cost, or a function that is unknown.
pub(super) fn check(expression: &IdedExpr) -> Result<(), String> {
    let device = Estimate { cost: 1, count: DEVICE_COUNT, weight: DEVICE_WEIGHT };
    let mut scope = vec![("device".to_owned(), device)];
    let cost = estimate(expression, &mut scope, 0)?.cost;
    if cost > COST_MAX {
        return Err(format!("its estimated cost is {cost}; accepted: at most {COST_MAX}"));
    }
    Ok(())
}

fn estimate(it: &IdedExpr, scope: &mut Scope, depth: usize) -> Result<Estimate, String> {
    if depth > DEPTH_MAX {
        return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
    }
    let depth = depth + 1;
    Ok(match &it.expr {
        Expr::Literal(literal) => estimate_literal(literal),
        Expr::Ident(name) => {
            let known = scope.iter().rev().find(|(known, _)| known == name);
            known.map_or(Estimate::SCALAR, |(_, it)| Estimate { cost: 1, ..*it })
        }
        Expr::Select(select) => element_of(estimate(&select.operand, scope, depth)?),
        Expr::List(list) => sum(list.elements.iter(), scope, depth)?,
        Expr::Map(map) => {
            let entries = map.entries.iter().filter_map(|it| match &it.expr {
                EntryExpr::MapEntry(entry) => Some([&entry.key, &entry.value]),
                EntryExpr::StructField(_) => None,
            });
            sum(entries.flatten(), scope, depth)?
        }
        Expr::Call(call) => estimate_call(call, scope, depth)?,
        Expr::Comprehension(it) => estimate_loop(it, scope, depth)?,
        Expr::Struct(it) => return Err(format!("it creates a {}, which is unknown", it.type_name)),
        Expr::Unspecified => return Err("it has an empty part".to_owned()),
    })
}

fn estimate_literal(literal: &LiteralValue) -> Estimate {
    let length = match literal {
        LiteralValue::String(text) => text.inner().len(),
        LiteralValue::Bytes(bytes) => bytes.inner().len(),
        _ => 1,
    };
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    Estimate { cost: 1, count: length, weight: length.max(1) }
}

/// A part of a value: no larger than the whole.
fn element_of(whole: Estimate) -> Estimate {
    let count = if whole.weight == DEVICE_WEIGHT { DEVICE_COUNT } else { whole.weight };
    Estimate { cost: whole.cost.saturating_add(1), count, weight: whole.weight }
}

fn sum<'a>(
    parts: impl Iterator<Item = &'a IdedExpr>,
    scope: &mut Scope,
    depth: usize,
) -> Result<Estimate, String> {
    let mut total = Estimate { cost: 1, count: 0, weight: 1 };
    for part in parts {
        let part = estimate(part, scope, depth)?;
        total.cost = total.cost.saturating_add(part.cost);
        total.count += 1;
        total.weight = total.weight.saturating_add(part.weight);
    }
    Ok(total)
}

fn estimate_call(call: &CallExpr, scope: &mut Scope, depth: usize) -> Result<Estimate, String> {
    let name = call.func_name.as_str();
    if !FUNCTIONS.contains(&name) {
        return Err(format!("it calls {name}(), which this scheduler does not know"));
    }
    let mut parts = Vec::with_capacity(call.args.len() + 1);
    for part in call.target.as_deref().into_iter().chain(&call.args) {
        parts.push(estimate(part, scope, depth)?);
    }
    let cost = parts.iter().fold(1_u64, |sum, it| sum.saturating_add(it.cost));
    let weights = parts.iter().fold(0_u64, |sum, it| sum.saturating_add(it.weight));
    let largest = parts.iter().map(|it| it.weight).max().unwrap_or(1);
    let counts = parts.iter().fold(0_u64, |sum, it| sum.saturating_add(it.count));
    let product = parts.iter().fold(1_u64, |product, it| product.saturating_mul(it.weight.max(1)));
    // Ten characters are compared or copied in the time of one step.
    let by_text = cost.saturating_add(weights / 10);
    Ok(match name {
        "_[_]" | "_[?_]" | "_?._" => {
            element_of(Estimate { cost, ..parts.first().copied().unwrap_or_default() })
        }
        "_?_:_" | "or" | "orValue" => {
            let count = parts.iter().map(|it| it.count).max().unwrap_or(1);
            Estimate { cost, count, weight: largest }
        }
        "_+_" => Estimate { cost: by_text, count: counts, weight: weights },
        "matches" => Estimate::SCALAR
            .plus_cost(by_text.saturating_add(PATTERN_COST).saturating_add(product / 100)),
        "replace" | "join" => {
            Estimate { cost: cost.saturating_add(product / 10), count: product, weight: product }
        }
        "split" => Estimate { cost: by_text, count: weights, weight: weights.saturating_mul(2) },
        "charAt"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "reverse"
        | "string"
        | "dyn"
        | "of"
        | "ofNonZeroValue"
        | "value"
        | "optional.of"
        | "optional.ofNonZeroValue" => {
            Estimate { cost: by_text, count: largest, weight: largest.saturating_add(32) }
        }
        _ => Estimate::SCALAR.plus_cost(by_text),
    })
}

fn estimate_loop(
    it: &ComprehensionExpr,
    scope: &mut Scope,
    depth: usize,
) -> Result<Estimate, String> {
    let range = estimate(&it.iter_range, scope, depth)?;
    let init = estimate(&it.accu_init, scope, depth)?;
    let rounds = range.count;
    let known = scope.len();
    scope.push((it.iter_var.clone(), element_of(range)));
    scope.extend(it.iter_var2.iter().map(|name| (name.clone(), element_of(range))));
    // What one round adds to the accumulator, which has the start value at least.
    scope.push((it.accu_var.clone(), init));
    let condition = estimate(&it.loop_cond, scope, depth)?;
    let step = estimate(&it.loop_step, scope, depth)?;
    scope.truncate(known);
    let grown = |start: u64, step: u64| {
        start.saturating_add(rounds.saturating_mul(step.saturating_sub(start)))
    };
    let end = Estimate {
        cost: 1,
        count: grown(init.count, step.count),
        weight: grown(init.weight, step.weight),
    };
    scope.push((it.accu_var.clone(), end));
    let result = estimate(&it.result, scope, depth)?;
    scope.truncate(known);
    let round = condition.cost.saturating_add(step.cost);
    let cost = range
        .cost
        .saturating_add(init.cost)
        .saturating_add(rounds.saturating_mul(round))
        .saturating_add(result.cost);
    Ok(Estimate { cost, ..result })
}
