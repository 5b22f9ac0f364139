//! The text of a caught panic.

use std::any::Any;

/// The message of a panic that `catch_unwind` caught, or of a task that panicked.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let formatted = panic.downcast_ref::<String>().map(String::as_str);
    formatted.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Whether a panic with this text says that the process got no thread. The standard library, Tokio and rayon panic
/// then, and nothing is wrong with the code or its data.
pub fn is_thread_shortage(text: &str) -> bool {
    let said = ["failed to spawn thread", "OS can't spawn", "ThreadPoolBuildError"];
    said.iter().any(|said| text.contains(said))
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn panic_text_reads_both_kinds_of_messages() {
        let text = |panic: Box<dyn Any + Send>| panic_text(panic.as_ref()).to_owned();
        assert_eq!(text(catch_unwind(|| panic!("literal")).unwrap_err()), "literal");
        assert_eq!(text(catch_unwind(|| panic!("row {}", 3)).unwrap_err()), "row 3");
        assert_eq!(text(Box::new(3)), "no message");
    }
}
