//! `berth token`: who may do what.

use berth_api::{CreatedToken, NewToken, Role, Token};
use berth_control::Caller;
use berth_ledger::{Backend, Ledger, Options};
use berth_server::TokenRecord;
use clap::{Args, Subcommand};

use super::args;
use super::failure::{Done, Exit, Failure};
use super::output::Output;
use super::output::style::{BOLD, DIM, paint};
use super::session::{Global, Raw, Session};
use super::table::{Cell, Table, Tone, pairs};
use super::words::{age, now, or_dash};

/// Make, list and revoke tokens.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Tokens {
    /// Make a token. Its secret is shown this once.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List tokens, without their secrets.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth token list")]
    List(List),
    /// Revoke tokens: at once, on every server.
    #[command(after_help = "Example:\n  berth token revoke 0123456789abcdef")]
    Revoke(Revoke),
}

const EXAMPLES: &str = "\
Examples:
  berth token create --role tenant --namespace acme --expires 30d
  berth token revoke 0123456789abcdef";

const CREATE_EXAMPLES: &str = "\
Examples:
  berth token create --role tenant --namespace acme --expires 30d
  berth token create --role agent --node node-000012
  berth token create --role viewer --name 'the wall screen' -q > token

Who lost all tokens makes a new one in the database itself, where no token is asked for:
  berth token create --role admin --database-url berth.db";

/// A token as it is asked for.
#[derive(Args, Debug)]
pub(crate) struct Create {
    /// What it may do.
    #[arg(long, value_parser = role, value_name = "admin|operator|agent|tenant|viewer")]
    role: Role,
    /// What it is for; made of role and namespace or node when not given.
    #[arg(long)]
    name: Option<String>,
    /// For a tenant: a namespace; the first is the default.
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    /// For an agent: its node.
    #[arg(long)]
    node: Option<String>,
    /// After what time it ends; never when not given.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    expires: Option<u32>,
    /// Make it in this database instead of asking a server: a SQLite file, or
    /// postgres://USER@HOST/NAME.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

/// Which tokens.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Those that ended or were revoked as well.
    #[arg(long, short)]
    all: bool,
}

/// Tokens to revoke.
#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// Their ids.
    #[arg(required = true)]
    ids: Vec<String>,
}

fn role(text: &str) -> Result<Role, String> {
    let found = Role::ALL.into_iter().find(|role| role.name() == text);
    found.ok_or_else(|| "accepted is admin, operator, agent, tenant or viewer".to_owned())
}

impl Create {
    fn new_token(&self) -> NewToken {
        let bound = self.namespaces.first().or(self.node.as_ref());
        let made = || match bound {
            Some(bound) => format!("{} {bound}", self.role.name()),
            None => self.role.name().to_owned(),
        };
        NewToken {
            name: self.name.clone().unwrap_or_else(made),
            role: self.role,
            namespaces: self.namespaces.clone(),
            node: self.node.as_deref().map(Into::into),
            expires_in_s: self.expires.map(u64::from),
        }
    }

    async fn run(self, global: &Global) -> Done {
        let new = self.new_token();
        if let Some(url) = &self.database_url {
            let made = in_database(url, &new)?;
            let raw = serde_json::value::to_raw_value(&made)?;
            return print_made(&global.out(), &raw);
        }
        let raw: Raw = global.session()?.client.post("/v1/tokens", &new).await?;
        print_made(&global.out(), &raw)
    }
}

/// Makes a token in the database itself.
fn in_database(url: &str, new: &NewToken) -> Done<CreatedToken> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let backend = Backend::parse(url).map_err(|error| Failure::usage(error.to_string()))?;
    if let Backend::Sqlite(path) = &backend
        && !path.exists()
    {
        let line = format!("{} does not exist", path.display());
        return Err(Failure::new(Exit::NotFound, line).accepted("the database of a server"));
    }
    let (record, secret) =
        TokenRecord::make(new, now()).map_err(|error| Failure::usage(error.to_string()))?;
    let options = Options { lanes: 1, ..Options::default() };
    let ledger = Ledger::open(backend, options).map_err(|error| failed(&error))?;
    let caller = Caller::local("berth token create");
    berth_server::access::store_token(&ledger, &record, &caller).map_err(|error| failed(&error))?;
    Ok(CreatedToken { token: record.token, secret })
}

fn print_made(out: &Output, raw: &Raw) -> Done {
    out.answer(raw, |made: CreatedToken| {
        if out.quiet {
            out.line(made.secret);
            return Ok(());
        }
        let mut lines = lines(&made.token);
        lines.push(("secret", paint(BOLD, &made.secret)));
        out.line(pairs(&lines));
        out.note(paint(DIM, "\nThe secret is not shown again. Present it with --token, BERTH_TOKEN or --token-file."));
        Ok(())
    })
}

fn lines(token: &Token) -> Vec<(&'static str, String)> {
    vec![
        ("id", token.id.clone()),
        ("name", token.name.clone()),
        ("role", token.role.name().to_owned()),
        ("namespaces", token.namespaces.join(" ")),
        ("node", token.node.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("ends", token.expires_at.map_or_else(|| "never".to_owned(), age)),
    ]
}

impl Tokens {
    pub(crate) async fn run(self, global: &Global) -> Done {
        match self {
            Self::Create(create) => create.run(global).await,
            Self::List(list) => {
                let session = global.session()?;
                let human = |tokens: Vec<Token>| {
                    session.out.table(&table(&tokens, list.all), "There are no tokens.");
                };
                session.show_list("/v1/tokens", &[], None, human).await
            }
            Self::Revoke(revoke) => revoke.run(&global.session()?).await,
        }
    }
}

impl Revoke {
    async fn run(self, session: &Session) -> Done {
        for id in &self.ids {
            session.client.delete(&format!("/v1/tokens/{}", berth_client::escape(id))).await?;
            session.out.note(format!("revoked {id}"));
        }
        Ok(())
    }
}

fn table(tokens: &[Token], all: bool) -> Table {
    let mut table = Table::new(&["ID", "NAME", "ROLE", "BOUND TO", "MADE", "ENDS"]);
    let now = now();
    for token in tokens {
        let ended = token.expires_at.is_some_and(|end| end <= now);
        let end = match (token.revoked_at, token.expires_at) {
            (Some(at), _) => Cell::toned(format!("revoked {}", age(at)), Tone::Dim),
            (None, Some(at)) if ended => Cell::toned(format!("ended {}", age(at)), Tone::Dim),
            (None, Some(at)) => age(at).into(),
            (None, None) => "never".into(),
        };
        if !all && (ended || token.revoked_at.is_some()) {
            continue;
        }
        let node = token.node.as_ref().map(ToString::to_string);
        let bound = node.unwrap_or_else(|| token.namespaces.join(" "));
        table.row([
            token.id.as_str().into(),
            token.name.as_str().into(),
            token.role.name().into(),
            or_dash(Some(&bound)),
            age(token.created_at).into(),
            end,
        ]);
    }
    table
}
