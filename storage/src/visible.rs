//! Hidden files and folders, which are no part of a dataset.

/// Whether neither the file nor a folder on the way is hidden.
pub(crate) fn is_visible(path: &str) -> bool {
    path.split('/').all(is_visible_name)
}

/// Whether the name of a file or folder is not hidden.
pub(crate) fn is_visible_name(name: &str) -> bool {
    !name.starts_with(['.', '_'])
}
