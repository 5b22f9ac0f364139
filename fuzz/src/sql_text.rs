//! SQL text.

use std::thread::Builder;

use forebay_sql::{Statement, parse};

use crate::engine::{alone, session};
use crate::runtime::block_on;

/// The stack of the threads that plan queries: that of tokio's, which `forebay_sql` counts on.
const STACK_BYTES: usize = 2 << 20;

/// Parses a text, and creates the pipelines in it: planning and compiling, but no reading. A text that is not a
/// statement is tried as a query.
pub fn sql(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let query = format!("CREATE PIPELINE q AS {text}");
    let mut is_accepted = false;
    for text in [text, &query] {
        let Ok(statements) = parse(text).map_err(|error| error.render("fuzz.sql", text)) else { continue };
        for statement in statements {
            let Statement::CreatePipeline(pipeline) = statement else {
                is_accepted = true;
                continue;
            };
            let again = parse(&pipeline.statement).expect("a statement's own text can be parsed");
            assert_eq!(again.len(), 1, "{}", pipeline.statement);
            is_accepted |= on_small_stack(|| create(&pipeline.name, &pipeline.statement));
        }
    }
    is_accepted
}

/// Creates a pipeline and removes it, unless it is one of the session's own.
fn create(name: &str, statement: &str) -> bool {
    let _alone = alone();
    let is_created = block_on(session().execute("fuzz.sql", statement)).is_ok();
    if is_created && !["p", "shuffled", "texts"].contains(&name) {
        session().undefine(name);
    }
    is_created
}

fn on_small_stack(work: impl FnOnce() -> bool + Send) -> bool {
    std::thread::scope(|scope| {
        let thread = Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work).expect("a thread starts");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
