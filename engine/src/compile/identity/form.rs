//! Writes the canonical form of a query into a hash.

use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;

/// Writes a plan, whose nodes have expressions, which may have subqueries.
pub(super) type WritePlan = fn(&mut Form, &LogicalPlan) -> Result<()>;

/// The canonical form of a query, hashed as it is written.
pub(super) struct Form {
    hasher: blake3::Hasher,
    write_plan: WritePlan,
}

impl Form {
    /// The form of this version, empty so far. Expressions write subqueries by `write_plan`.
    pub(super) fn new(version: &str, write_plan: WritePlan) -> Self {
        let mut form = Self { hasher: blake3::Hasher::new(), write_plan };
        form.text(version);
        form
    }

    /// A form of a part, by itself.
    pub(super) fn part(&self) -> Self {
        Self::new("", self.write_plan)
    }

    /// Writes a plan.
    pub(super) fn plan(&mut self, plan: &LogicalPlan) -> Result<()> {
        (self.write_plan)(self, plan)
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
        self.hasher.update(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.hasher.update(&number.to_le_bytes());
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
        self.hasher.finalize().to_hex().to_string()
    }
}

/// Refuses a part of a plan that the canonical form does not cover.
pub(super) fn without_form<T>(what: impl std::fmt::Display) -> Result<T> {
    internal_err!("{what} has no form in a query's identity")
}
