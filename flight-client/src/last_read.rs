//! What a client read last from the files of its token and its certificates.
//!
//! They are read again for each request and each connection. A file that is being replaced, or that is wrong, changes
//! nothing: what was read before stays in use.

use std::fmt;
use std::sync::Arc;

use forebay_protocol::Result;
use parking_lot::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::ClientTlsConfig;

/// What was read last, shared by clones. Part of [`ConnectOptions`](crate::ConnectOptions).
#[derive(Clone, Default)]
pub struct LastRead(Arc<Content>);

#[derive(Default)]
struct Content {
    token: Mutex<Kept<MetadataValue<Ascii>>>,
    tls: Mutex<Kept<ClientTlsConfig>>,
}

struct Kept<T> {
    last: Option<T>,
    /// Whether a warning was logged since the last time that reading succeeded.
    is_warned: bool,
}

impl LastRead {
    /// The token's header as read now, or as it was before.
    ///
    /// # Errors
    /// Those of the first time.
    pub(crate) fn token(&self, read: Result<MetadataValue<Ascii>>) -> Result<MetadataValue<Ascii>> {
        self.0.token.lock().now_or_last(read)
    }

    /// The certificates as read now, or as they were before.
    ///
    /// # Errors
    /// Those of the first time.
    pub(crate) fn tls(&self, read: Result<ClientTlsConfig>) -> Result<ClientTlsConfig> {
        self.0.tls.lock().now_or_last(read)
    }
}

impl<T: Clone> Kept<T> {
    fn now_or_last(&mut self, read: Result<T>) -> Result<T> {
        match (read, &self.last) {
            (Ok(now), _) => {
                *self = Self { last: Some(now.clone()), is_warned: false };
                Ok(now)
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(last)) => {
                if !std::mem::replace(&mut self.is_warned, true) {
                    let (error, hint) = (error.message(), error.hint().unwrap_or_default());
                    tracing::warn!(error, hint, "a file cannot be used; what was read before stays in use");
                }
                Ok(last.clone())
            }
        }
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { last: None, is_warned: false }
    }
}

impl fmt::Debug for LastRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastRead")
    }
}

#[cfg(test)]
mod tests {
    use forebay_protocol::{Error, ErrorKind};

    use super::*;

    #[test]
    fn what_cannot_be_read_stays_as_it_was() {
        let last = LastRead::default();
        let wrong = || Err(Error::new(ErrorKind::Invalid, "the file is wrong"));
        assert!(last.token(wrong()).is_err(), "there was nothing before");
        let read = |text: &'static str| Ok(MetadataValue::from_static(text));
        assert_eq!(last.clone().token(read("one")).unwrap(), "one");
        assert_eq!(last.token(wrong()).unwrap(), "one");
        assert_eq!(last.token(read("two")).unwrap(), "two");
    }
}
