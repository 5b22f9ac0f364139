//! Metrics of who was refused, and of the certificate's end.

use std::fmt;
use std::sync::Arc;

use super::page::Page;
use crate::logins::FailedLogins;
use crate::tls::ServerTls;

/// The security of a process, as its metrics show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecurityState {
    pub(crate) tls: Option<ServerTls>,
    pub(crate) failed_logins: Arc<FailedLogins>,
}

pub(super) fn write(page: &mut Page<'_>, state: &SecurityState) -> fmt::Result {
    let failed = state.failed_logins.counts().into_iter().map(|(reason, count)| ([("reason", reason)], count as f64));
    page.counter("forebay_failed_logins", "Connections and requests that were refused for who sent them", failed)?;
    let expires = state.tls.as_ref().and_then(ServerTls::expires_unix_seconds);
    page.single(
        "forebay_tls_certificate_expiry_timestamp_seconds",
        "When the certificate of this process expires, in seconds since 1970",
        expires.map(|seconds| seconds as f64),
    )
}
