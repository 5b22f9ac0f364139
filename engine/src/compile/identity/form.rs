//! Writes the canonical form of a query into a hash.

use datafusion::common::internal_err;
use datafusion::error::Result;

/// The canonical form of a query, hashed as it is written.
pub(super) struct Form(blake3::Hasher);

impl Form {
    /// The form of this version, empty so far.
    pub(super) fn new(version: &str) -> Self {
        let mut form = Self(blake3::Hasher::new());
        form.text(version);
        form
    }

    /// Begins a part.
    pub(super) fn tag(&mut self, tag: &'static str) {
        self.text(tag);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.number(u64::from(flag));
    }

    /// Writes the number of items, then each item.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        mut item: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        let items = items.into_iter();
        self.number(items.len() as u64);
        items.into_iter().try_for_each(|it| item(self, it))
    }

    /// Writes whether the value is present, then the value.
    pub(super) fn optional<T>(
        &mut self,
        value: Option<T>,
        write: impl FnOnce(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.flag(value.is_some());
        value.map_or(Ok(()), |value| write(self, value))
    }

    /// The hash in hexadecimal digits.
    pub(super) fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// Refuses a part of a plan that the canonical form does not cover.
pub(super) fn without_form<T>(what: impl std::fmt::Display) -> Result<T> {
    internal_err!("{what} has no form in a query's identity")
}
