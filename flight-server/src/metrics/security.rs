//! Metrics of who was refused, and of the files of certificates and tokens.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::page::Page;
use crate::logins::FailedLogins;
use crate::rotation::RotationState;

/// The security of a process, as its metrics show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecurityState {
    pub(crate) failed_logins: Arc<FailedLogins>,
    pub(crate) rotation: Arc<RotationState>,
}

pub(super) fn write(page: &mut Page<'_>, state: &SecurityState) -> fmt::Result {
    let failed = state.failed_logins.counts().into_iter().map(|(reason, count)| ([("reason", reason)], count as f64));
    page.counter("forebay_failed_logins", "Connections and requests that were refused for who sent them", failed)?;
    let RotationState { succeeded, failed, failing, expiries } = &*state.rotation;
    let reloads = [("failed", failed), ("succeeded", succeeded)];
    let reloads = reloads.map(|(result, count)| ([("result", result)], count.load(Ordering::Relaxed) as f64));
    page.counter("forebay_security_reloads", "How often files of certificates and tokens were read again", reloads)?;
    page.single(
        "forebay_security_files_failing",
        "Groups of such files that cannot be used, so that what was read before is in use",
        failing.load(Ordering::Relaxed) as f64,
    )?;
    let expiries = expiries.lock();
    let ends = expiries.iter().map(|expiry| ([("file", expiry.file)], expiry.not_after_unix_seconds as f64));
    page.gauge(
        "forebay_tls_certificate_expiry_timestamp_seconds",
        "When the certificates of a file expire, in seconds since 1970",
        ends,
    )
}
