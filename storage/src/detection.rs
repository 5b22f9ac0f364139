//! Detects the format of files from their extensions.

use object_store::ObjectStore;
use object_store::path::Path;

use crate::formats::format::Format;
use crate::formats::registry::{find_by_extension, names};
use crate::listing::{check_folder_exists, compile_glob, head, split_glob, visible_below};
use crate::stores::StoreLocation;
use crate::{Error, ErrorKind, Result, Stores};

/// Maximum number of folders to search, because links may make a folder contain itself.
const FOLDERS_MAX: usize = 1000;

/// The format of the files at `location`: the format of its own extension, or else of the first file below it with a
/// known extension. Files are searched by name, folder by folder. A folder of several formats determines none.
///
/// # Errors
/// `Invalid` if no extension, or more than one, determines the format, and errors of the store.
pub async fn format_at(stores: &Stores, location: &str) -> Result<&'static dyn Format> {
    if let Some(format) = find_by_extension(location) {
        return Ok(format);
    }
    let place = stores.locate(location)?;
    let found = match split_glob(&place.path) {
        Some((folder, pattern)) => {
            let matcher = compile_glob(&place.display(), &pattern)?;
            first_known(&place, &folder, |name| matcher.is_match(name)).await?
        }
        None => first_known(&place, &place.path, |_| true).await?,
    };
    if found.is_none() && split_glob(&place.path).is_none() && head(&place).await?.is_none() {
        check_folder_exists(&place).await?;
    }
    found.ok_or_else(|| {
        let names: Vec<String> = names().map(|name| format!("\"{name}\"")).collect();
        Error::invalid(format!("\"{location}\" does not indicate the format of its files"))
            .with_hint(format!("give the format: {}", names.join(", ")))
    })
}

async fn first_known(
    place: &StoreLocation,
    root: &Path,
    is_meant: impl Fn(&str) -> bool,
) -> Result<Option<&'static dyn Format>> {
    let mut folders = vec![root.clone()];
    for _ in 0..FOLDERS_MAX {
        let Some(folder) = folders.pop() else { break };
        let mut listed = match place.store.list_with_delimiter(Some(&folder)).await {
            Ok(listed) => listed,
            Err(error) => match Error::from_store(&place.display_of(&folder), error) {
                error if error.kind() == ErrorKind::NotFound => continue,
                error => return Err(error),
            },
        };
        listed.objects.sort_by(|a, b| a.location.cmp(&b.location));
        let names = listed.objects.iter().filter_map(|object| visible_below(root, &object.location));
        let mut known = names.filter(|name| is_meant(name)).filter_map(|name| find_by_extension(&name));
        if let Some(format) = known.next() {
            return match known.find(|other| other.descriptor().name != format.descriptor().name) {
                None => Ok(Some(format)),
                Some(other) => Err(several(&place.display_of(&folder), format, other)),
            };
        }
        // The last is searched first.
        listed.common_prefixes.sort_by(|a, b| b.cmp(a));
        folders.extend(listed.common_prefixes.into_iter().filter(|folder| visible_below(root, folder).is_some()));
    }
    Ok(None)
}

fn several(folder: &str, one: &dyn Format, other: &dyn Format) -> Error {
    let (one, other) = (one.descriptor().name, other.descriptor().name);
    Error::invalid(format!("\"{folder}\" has files of several formats, such as {one} and {other}"))
        .with_hint(format!("give the format, such as \"{one}\", or name the files with a glob"))
}
