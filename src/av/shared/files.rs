//! The files of shared vectors, and the processes that have one open.
//!
//! The files of one user are in a directory that only this user may enter. Each vector has two
//! files: its records, and an empty file on which each process that has the vector open keeps a
//! shared lock. A process that gets this lock exclusively knows that all processes that had the
//! vector open have closed it or crashed. Opening and closing happen one at a time, under the
//! directory's lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::{SharedVectorConfig, lock, try_lock};
use crate::error::{Error, ErrorKind, Result};

/// Whether the files of a vector existed already when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// No process had the vector open; files that were left of it have been removed.
    Created,
    Existing,
}

/// A vector that is being opened; no other process opens or closes one meanwhile.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) found: FileOrigin,
    members: File,
    paths: Paths,
    /// Locked until the opening is dropped.
    _gate: File,
}

#[derive(Clone, Debug)]
struct Paths {
    gate: PathBuf,
    data: PathBuf,
    members: PathBuf,
}

/// Starts to open a vector, and opens its file of records.
pub(super) fn open(wanted: &SharedVectorConfig<'_>) -> Result<(Opening, File)> {
    let directory = private_directory(wanted.directory)?;
    let mut hasher = blake3::Hasher::new();
    for part in [wanted.domain, wanted.name] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let stem = hasher.finalize().to_hex();
    let paths = Paths {
        gate: directory.join("gate"),
        data: directory.join(format!("{}.av", &stem[..32])),
        members: directory.join(format!("{}.members", &stem[..32])),
    };
    let gate = lock_gate(&paths)?;
    let members = open_file(&paths.members, OpenOptions::new().write(true).create(true))?;
    let is_only_member = try_lock(&members, FlockOperation::NonBlockingLockExclusive)?;
    if is_only_member {
        remove(&paths.data)?;
        if wanted.read_only {
            remove(&paths.members)?;
            let message = format!("name: no address vector {:?} is open", wanted.name);
            return Err(Error::new(ErrorKind::NoMatch, message));
        }
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(!wanted.read_only)
        .create_new(is_only_member);
    let data = open_file(&paths.data, &mut options)?;
    let opening = Opening {
        found: match is_only_member {
            true => FileOrigin::Created,
            false => FileOrigin::Existing,
        },
        members,
        paths,
        _gate: gate,
    };
    Ok((opening, data))
}

impl Opening {
    /// Makes this process a member: one that has the vector open.
    pub(super) fn finish(self) -> Result<Membership> {
        // No other process can take the lock exclusively meanwhile, since that needs the gate.
        if !try_lock(&self.members, FlockOperation::NonBlockingLockShared)? {
            let message = "name: the shared address vector is locked by no member of it";
            return Err(Error::new(ErrorKind::Again, message));
        }
        Ok(Membership {
            members: self.members,
            paths: self.paths,
            process: std::process::id(),
        })
    }
}

/// Keeps a vector in existence. The last membership to be dropped removes the vector's files; if
/// its process is killed, the next process that opens the name removes them.
///
/// A forked child inherits its parent's lock with the descriptor, and could get it exclusively, as
/// if no process had the vector open. So it removes nothing: the files belong to its parent.
#[derive(Debug)]
pub(in crate::av) struct Membership {
    members: File,
    paths: Paths,
    process: u32,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let Ok(_gate) = lock_gate(&self.paths) else {
            return;
        };
        let is_only_member = try_lock(&self.members, FlockOperation::NonBlockingLockExclusive);
        if is_only_member.is_ok_and(|is_only_member| is_only_member) {
            let removed = [&self.paths.data, &self.paths.members].map(|path| remove(path));
            for error in removed.into_iter().filter_map(Result::err) {
                tracing::warn!(%error, "a shared address vector is left behind");
            }
        }
    }
}

fn lock_gate(paths: &Paths) -> Result<File> {
    let gate = open_file(&paths.gate, OpenOptions::new().write(true).create(true))?;
    lock(&gate)?;
    Ok(gate)
}

/// Returns a directory that no other user can write to, and creates it if necessary.
fn private_directory(base: &Path) -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let path = base.join(format!("tokio-fabric-{user}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&path).map_err(failed)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let message = format!("{} is not a directory of this user's alone", path.display());
        return Err(Error::new(ErrorKind::AccessDenied, message));
    }
    Ok(path)
}

/// Opens a regular file and never blocks. If the path has been replaced by a pipe, the open does
/// not wait for a writer.
fn open_file(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags).open(path);
    let file = file.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        let message = format!("{} is not a file", path.display());
        return Err(Error::new(ErrorKind::Incompatible, message));
    }
    Ok(file)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

fn failed(error: io::Error) -> Error {
    Error::from_io(&error, "opening a shared address vector")
}
