//! The local disk as a store.
//!
//! An object that is created appears with its content, also after a power failure. Without that, a disk may keep the
//! name and lose the content, and a commit would be there that says nothing.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

#[derive(Debug, Default)]
pub(crate) struct LocalDisk {
    files: LocalFileSystem,
}

impl fmt::Display for LocalDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for LocalDisk {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if options.mode != PutMode::Create {
            return self.files.put_opts(path, payload, options).await;
        }
        let file = self.files.path_to_filesystem(path)?;
        let shown = file.display().to_string();
        let created = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(move || create(&file, &payload)).await?,
            Err(_) => create(&file, &payload),
        };
        match created {
            Ok(()) => Ok(PutResult { e_tag: None, version: None }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Error::AlreadyExists { path: shown, source: error.into() })
            }
            Err(error) => Err(Error::Generic { store: "local disk", source: error.into() }),
        }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.files.rename_opts(from, to, options).await
    }
}

/// Creates a file whose content is on the disk before its name is.
fn create(path: &FsPath, content: &PutPayload) -> io::Result<()> {
    let (mut file, staged) = stage(path)?;
    let written = content.iter().try_for_each(|bytes| file.write_all(bytes)).and_then(|()| file.sync_all());
    // To rename it would replace another one.
    let created = written.and_then(|()| fs::hard_link(&staged, path));
    // Whoever tidies the folder removes it otherwise.
    let _ = fs::remove_file(&staged);
    created
}

/// A new file under a name such as object_store gives to unfinished ones, which no listing shows.
fn stage(path: &FsPath) -> io::Result<(File, PathBuf)> {
    for number in 1.. {
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!("#{number}"));
        let staged = PathBuf::from(staged);
        match File::options().write(true).create_new(true).open(&staged) {
            Ok(file) => return Ok((file, staged)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().ok_or(error)?)?;
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("there are numbers enough")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_is_created_once_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/c");
        let path = Path::from_absolute_path(&file).unwrap();
        let disk = LocalDisk::default();
        let create = async |text: &'static str| {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            disk.put_opts(&path, Bytes::from_static(text.as_bytes()).into(), options).await
        };
        // What a killed process left does not matter.
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(folder.path().join("a/b/c#1"), "half").unwrap();
        create("x").await.unwrap();
        assert!(matches!(create("y").await, Err(Error::AlreadyExists { .. })));
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
        let left = fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.filter(|name| name != "c" && name != "c#1").count(), 0);
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_created_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "a file").unwrap();
        let path = Path::from_absolute_path(folder.path().join("a/b")).unwrap();
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let error = LocalDisk::default().put_opts(&path, "x".into(), options).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{error}");
    }
}
