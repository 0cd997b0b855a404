//! Pages that need no script: signing in, the API, what a code means, errors. The console shows the rest.
//!
//! A page is a frame around parts. A part is a template with its own data that does not depend on
//! its position, so that other pages can use it too.

mod docs;
mod frame;
mod problem_codes;

#[cfg(test)]
pub(crate) use docs::assert_complete;
pub(crate) use docs::docs_page;
pub(crate) use frame::{ErrorPage, STYLE, SignInPage, html};
pub(crate) use problem_codes::ProblemPage;
