//! Values whose types the compiler does not look into.

use std::fmt::{self, Debug, Formatter};
use std::ops::Deref;
use std::sync::Arc;

/// A shared value behind a pointer whose type says that it is `Send` and `Sync`.
///
/// Without it, the compiler derives that from every type that the value may contain. A plan of DataFusion may contain
/// hundreds, which contain each other. Deriving it takes seconds, for each async method of a trait that a type with a
/// session in it implements, in every crate above.
pub(crate) struct Sealed<T>(Arc<dyn Deref<Target = T> + Send + Sync>);

impl<T> Sealed<T> {
    /// Whether both are one value.
    pub(crate) fn is_same(one: &Self, other: &Self) -> bool {
        Arc::ptr_eq(&one.0, &other.0)
    }
}

impl<T: Send + Sync + 'static> From<T> for Sealed<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(Box::new(value)))
    }
}

impl<T> Deref for Sealed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Debug> Debug for Sealed<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
