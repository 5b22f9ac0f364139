//! Extensions of file names.

/// Whether the last name of `path` has one of `extensions`, in any case.
pub(crate) fn has_extension(path: &str, extensions: &[&str]) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').is_some_and(|(_, ext)| extensions.iter().any(|e| e.eq_ignore_ascii_case(ext)))
}
