//! `berth tokens`: credentials of people, agents and tenants.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use berth_api::{CreatedToken, NewToken, Role, Token};
use berth_control::Caller;
use berth_ledger::{Backend, Ledger, Options};
use berth_server::TokenRecord;
use clap::{Args, Subcommand};

use super::resource::{NameArgs, Resource, WatchOption};
use crate::cmdutil::style::{BOLD, DIM, paint};
use crate::cmdutil::{
    Cell, CmdResult, Column, Exit, Failure, Global, Output, RawJson, Tone, age, args, columns,
    create_private_file, decode_all, now, or_dash,
};

/// Create, list and revoke tokens.
#[derive(Subcommand, Debug)]
#[command(visible_alias = "token", after_help = EXAMPLES)]
pub(crate) enum Tokens {
    /// Create a token. Its secret is shown only once, and only on a terminal.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// List tokens, without their secrets.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth tokens list")]
    List(ListArgs),
    /// Revoke tokens: immediately on this server, on others as soon as they read of it.
    #[command(after_help = "Example:\n  berth tokens revoke 0123456789abcdef")]
    Revoke(NameArgs<Token>),
}

const EXAMPLES: &str = "\
Examples:
  berth tokens create --role tenant --tenant acme --expires 30d
  berth tokens revoke 0123456789abcdef";

const CREATE_EXAMPLES: &str = "\
Examples:
  berth tokens create --role tenant --tenant acme --expires 30d
  berth tokens create --role agent --node node-000012
  berth tokens create --role viewer --name 'the wall screen' --out token

If all tokens are lost, create one in the database itself, which needs no token:
  berth tokens create --role admin --database-url berth.db";

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Role: what the token may do.
    #[arg(long, value_parser = args::api_value::<Role>("admin, operator, agent, tenant or viewer"), value_name = "admin|operator|agent|tenant|viewer")]
    role: Role,
    /// Description; by default the role with the tenant or node.
    #[arg(long)]
    name: Option<String>,
    /// Tenant that the token may place for; may be repeated, the first one is the default.
    #[arg(long = "tenant", value_name = "TENANT", alias = "namespace")]
    tenants: Vec<String>,
    /// Node of an agent's token.
    #[arg(long)]
    node: Option<String>,
    /// Expire after this time; never by default.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    expires: Option<u32>,
    /// Create it in this database instead of asking a server: a SQLite file, or
    /// postgres://USER@HOST/NAME.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Write the secret to this file, readable only by you, instead of showing it.
    #[arg(long, value_name = "FILE", conflicts_with = "show_token")]
    out: Option<PathBuf>,
    /// Print the secret even if standard output is not a terminal.
    #[arg(long)]
    show_token: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Include expired and revoked tokens.
    #[arg(long, short)]
    all: bool,
    #[command(flatten)]
    watch: WatchOption,
}

impl Resource for Token {
    const KIND: &'static str = "token";
    const KEY: &'static str = "id";
    const PATH: &'static str = "/v1/tokens";
    const EMPTY: &'static str = "There are no tokens.";
    const COLUMNS: &'static [Column<Self>] = columns![token;
        "ID" => token.id.as_str(),
        "NAME" => token.name.as_str(),
        "ROLE" => token.role.name(),
        "BOUND TO" => bound_to(token),
        "CREATED" => age(token.created_at),
        "EXPIRES" => expiry(token),
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("id", self.id.clone()),
            ("name", self.name.clone()),
            ("role", self.role.name().to_owned()),
            ("tenants", self.tenants.join(" ")),
            ("node", self.node.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("expires", self.expires_at.map_or_else(|| "never".to_owned(), age)),
        ]
    }
}

fn bound_to(token: &Token) -> Cell {
    let node = token.node.as_ref().map(ToString::to_string);
    or_dash(Some(&node.unwrap_or_else(|| token.tenants.join(" "))))
}

fn is_expired(token: &Token) -> bool {
    token.expires_at.is_some_and(|end| end <= now())
}

fn is_valid(token: &Token) -> bool {
    !is_expired(token) && token.revoked_at.is_none()
}

fn expiry(token: &Token) -> Cell {
    match (token.revoked_at, token.expires_at) {
        (Some(at), _) => Cell::with_tone(format!("revoked {}", age(at)), Tone::Dim),
        (None, Some(at)) if is_expired(token) => {
            Cell::with_tone(format!("expired {}", age(at)), Tone::Dim)
        }
        (None, Some(at)) => age(at).into(),
        (None, None) => "never".into(),
    }
}

impl Tokens {
    pub(crate) async fn run(self, global: &Global) -> CmdResult {
        match self {
            Self::Create(create) => create.run(global).await,
            Self::List(list) => {
                let session = &global.session()?;
                let fetch = async || {
                    let mut page = session.get_list(Token::PATH, &[], None).await?;
                    if !list.all && !session.out.is_data() {
                        let tokens: Vec<Token> = decode_all(&page.items)?;
                        let mut tokens = tokens.iter();
                        page.items.retain(|_| tokens.next().is_some_and(is_valid));
                    }
                    Ok(page)
                };
                session.print_or_watch::<Token>(list.watch.into(), fetch, Token::EMPTY).await
            }
            Self::Revoke(args) => {
                global.session()?.delete_each::<Token>(&args.names, "revoked").await
            }
        }
    }
}

impl CreateArgs {
    fn new_token(&self) -> NewToken {
        let name = match self.tenants.first().or(self.node.as_ref()) {
            Some(bound) => format!("{} {bound}", self.role.name()),
            None => self.role.name().to_owned(),
        };
        NewToken {
            name: self.name.clone().unwrap_or(name),
            role: self.role,
            tenants: self.tenants.clone(),
            node: self.node.as_deref().map(Into::into),
            expires_in_s: self.expires.map(u64::from),
        }
    }

    async fn run(self, global: &Global) -> CmdResult {
        let out = global.out();
        // What is printed to a file or a pipe is soon readable by others, or in a log.
        let is_shown = self.show_token || std::io::stdout().is_terminal();
        if self.out.is_none() && !is_shown {
            let line = "standard output is not a terminal, so the secret is not printed to it";
            return Err(Failure::usage(line)
                .accepted("--out FILE, which only you can read, or --show-token"));
        }
        // Before the token exists, whose secret is not given again.
        let file = self.out.as_deref().map(|path| (path, create_private_file(path)));
        let file = match file {
            Some((path, Err(error))) => {
                return Err(Failure::usage(format!("--out is {}: {error}", path.display())));
            }
            Some((path, Ok(file))) => Some((path, file)),
            None => None,
        };
        let new = self.new_token();
        let raw: RawJson = match &self.database_url {
            Some(url) => serde_json::value::to_raw_value(&create_in_database(url, &new)?)?,
            None => global.session()?.client.post(Token::PATH, &new).await?,
        };
        let Some((path, mut file)) = file else {
            return out.response(&raw, |made: CreatedToken| print_secret(&out, &made));
        };
        let made: CreatedToken = serde_json::from_str(raw.get())?;
        file.write_all(format!("{}\n", made.secret).as_bytes())?;
        if out.is_data() {
            return out.data(&made.token);
        }
        if out.quiet {
            out.line(&made.token.id);
            return Ok(());
        }
        let mut fields = made.token.fields();
        fields.push(("secret", format!("in {}", path.display())));
        out.pairs(&fields);
        Ok(())
    }
}

/// Creates a token in the database itself.
fn create_in_database(url: &str, new: &NewToken) -> CmdResult<CreatedToken> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let backend = Backend::parse(url).map_err(|error| Failure::usage(error.to_string()))?;
    if let Backend::Sqlite(path) = &backend
        && !path.exists()
    {
        let message = format!("{} does not exist", path.display());
        return Err(Failure::new(Exit::NotFound, message).accepted("the database of a server"));
    }
    let (record, secret) =
        TokenRecord::make(new, now()).map_err(|error| Failure::usage(error.to_string()))?;
    let options = Options { writers: 1, ..Options::default() };
    let ledger = Ledger::open(backend, options).map_err(|error| failed(&error))?;
    let caller = Caller::local("berth tokens create");
    berth_server::access::store_token(&ledger, &record, &caller).map_err(|error| failed(&error))?;
    Ok(CreatedToken { token: record.token, secret })
}

fn print_secret(out: &Output, made: &CreatedToken) {
    if out.quiet {
        return out.line(&made.secret);
    }
    let mut fields = made.token.fields();
    fields.push(("secret", paint(BOLD, &made.secret)));
    out.pairs(&fields);
    let hint = "The secret is not shown again. Use it with --token, BERTH_TOKEN or --token-file.";
    out.note(format!("\n{}", paint(DIM, hint)));
}
