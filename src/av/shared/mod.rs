//! Named vectors that the processes of one user on one machine share (`fi_av(3)`, "Address vectors
//! may be shared across multiple processes").
//!
//! A vector is a file of fixed records (`record.rs`), one per index behind a header, in the
//! system's shared memory directory. It is read and written by system calls and never mapped, so
//! that no other process can truncate pages away under this one. A writer holds the file's lock,
//! which the kernel releases when the process dies. `files.rs` opens the files, and tracks which
//! processes have one open.
//!
//! The contents of the file are not trusted. Each record has a checksum over its index, the vector
//! that it belongs to and its contents: a record that is torn, or belongs to another vector, is
//! retired, that is, not used again. Sizes are bounded before anything is allocated for them.
//!
//! A name is looked up by one read of its record. Queries about all records use a copy of them in
//! memory, which is read anew if the header's count of changes differs from the count at which it
//! was made. The header says `changing` while records are being written: a process that finds this
//! while it holds the lock knows that the writer died, and reads all records again.
//!
//! Slots that a process has reserved and not committed when it dies stay reserved until the vector
//! ends.

mod files;
mod record;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};

use super::table::{AddressSlot, Entry, ReservedSlots, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::id::FabricAddr;
use crate::info::AvType;
use crate::limits::{
    SHARED_ADDRESSES_MAX, SHARED_AV_LOCK_TIMEOUT, SHARED_AV_READ_ATTEMPTS,
    SHARED_AV_RECORDS_PER_READ,
};
use crate::sync::Lock;

use files::FileOrigin;
pub(super) use files::Membership;
use record::{Header, RECORD_SIZE};

/// The directory of named vectors.
pub(super) const DIRECTORY: &str = "/dev/shm";

/// The parameters with which a process opens a named vector.
pub(super) struct SharedVectorConfig<'a> {
    pub(super) directory: &'a Path,
    /// Name of the domain: vectors of the same name in different domains are different vectors.
    pub(super) domain: &'a str,
    pub(super) name: &'a str,
    pub(super) av_type: AvType,
    pub(super) map_addr: u64,
    pub(super) read_only: bool,
}

/// A shared vector, as one process has it open.
#[derive(Debug)]
pub(super) struct SharedStore {
    file: File,
    vector: u32,
    read_only: bool,
    snapshot: Lock<TableSnapshot>,
}

/// A copy of the records at some moment.
#[derive(Debug)]
struct TableSnapshot {
    table: Table,
    /// The header's count of changes when the records were read; `None`: they have to be read
    /// again.
    read_at: Option<u64>,
}

/// A shared vector, its type and `map_addr`, and the objects to drop when it is closed.
pub(super) struct OpenedStore {
    pub(super) shared: SharedStore,
    pub(super) av_type: AvType,
    pub(super) map_addr: u64,
    pub(super) membership: Membership,
}

impl SharedStore {
    pub(super) fn open(wanted: &SharedVectorConfig<'_>) -> Result<OpenedStore> {
        let (opening, file) = files::open(wanted)?;
        let header = match opening.found {
            FileOrigin::Created => {
                let header = Header::new(wanted.av_type, wanted.map_addr)?;
                write(&file, &header.encode(), 0)?;
                header
            }
            FileOrigin::Existing => read_header(&file)?,
        };
        if wanted.av_type != AvType::Unspec && wanted.av_type != header.av_type {
            let message = format!("av_type: the shared vector is a {:?}", header.av_type);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let table = Table::new(header.vector, SHARED_ADDRESSES_MAX, 0);
        let snapshot = TableSnapshot {
            table,
            read_at: None,
        };
        Ok(OpenedStore {
            av_type: header.av_type,
            map_addr: match wanted.map_addr {
                0 => header.map_addr,
                asked => asked,
            },
            shared: SharedStore {
                file,
                vector: header.vector,
                read_only: wanted.read_only,
                snapshot: Lock::new(snapshot),
            },
            membership: opening.finish()?,
        })
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.read_only {
            false => Ok(()),
            true => {
                let message = "the address vector was opened for read-only access";
                Err(Error::new(ErrorKind::AccessDenied, message))
            }
        }
    }

    pub(super) fn get(&self, addr: FabricAddr) -> Result<Option<Entry>> {
        if addr.vector() != self.vector {
            return Ok(None);
        }
        let slot = self.read_slot(addr.index())?;
        Ok(slot.and_then(|slot| slot.entry(addr.generation()).copied()))
    }

    pub(super) fn at(&self, index: usize) -> Result<Option<(FabricAddr, Entry)>> {
        let slot = self.read_slot(index)?;
        Ok(slot.and_then(|slot| {
            let entry = *slot.entry(slot.generation)?;
            let addr = FabricAddr::new(self.vector, slot.generation, index as u32);
            Some((addr, entry))
        }))
    }

    /// Reads one record as it is now. `None` beyond the end of the file.
    fn read_slot(&self, index: usize) -> Result<Option<AddressSlot>> {
        if index >= SHARED_ADDRESSES_MAX as usize {
            return Ok(None);
        }
        let mut bytes = [0; RECORD_SIZE];
        for _ in 0..SHARED_AV_READ_ATTEMPTS {
            let read = read(&self.file, &mut bytes, record::offset(index as u32))?;
            if read < RECORD_SIZE {
                return Ok(None);
            }
            if let Some(slot) = record::decode(&bytes, self.vector, index as u32) {
                return Ok(Some(slot));
            }
            std::thread::yield_now();
        }
        Ok(Some(AddressSlot::RETIRED))
    }

    /// Queries the copy of all records, which is read anew first if necessary.
    pub(super) fn with_table<R>(&self, ask: impl FnOnce(&Table) -> R) -> Result<R> {
        let mut snapshot = self.snapshot.lock("read a shared vector");
        let header = self.header()?;
        if !snapshot.is_of(&header) {
            snapshot.read_all(&self.file, self.vector)?;
            // Records that are being written, or were until a moment ago, may have been read in
            // part.
            let settled = !header.changing && self.header()? == header;
            snapshot.read_at = settled.then_some(header.changes);
        }
        Ok(ask(&snapshot.table))
    }

    pub(super) fn reserve(&self, count: usize) -> Result<ReservedSlots> {
        self.change(|table, touched| {
            let reserved = table.reserve(count)?;
            touched.extend_from_slice(&reserved.indices);
            Ok(reserved)
        })
    }

    pub(super) fn commit(
        &self,
        reserved: ReservedSlots,
        entries: Vec<Result<Entry>>,
    ) -> Vec<Result<FabricAddr>> {
        let count = entries.len();
        let settled = self.change(|table, touched| {
            touched.extend_from_slice(&reserved.indices);
            Ok(table.commit(reserved, entries))
        });
        settled.unwrap_or_else(|error| vec![Err(error); count])
    }

    pub(super) fn remove(&self, addrs: &[FabricAddr]) -> Result<Vec<bool>> {
        self.change(|table, touched| {
            let removed = addrs.iter().map(|addr| {
                let removed = table.remove(*addr).is_some();
                touched.extend(removed.then_some(addr.index() as u32));
                removed
            });
            Ok(removed.collect())
        })
    }

    /// Changes the copy under the lock of the file, and then the records that `change` has listed
    /// as touched.
    fn change<R>(&self, change: impl FnOnce(&mut Table, &mut Vec<u32>) -> Result<R>) -> Result<R> {
        self.check_writable()?;
        let mut snapshot = self.snapshot.lock("change a shared vector");
        let _lock = FileLock::take(&self.file)?;
        let mut header = self.header()?;
        if !snapshot.is_of(&header) {
            snapshot.read_all(&self.file, self.vector)?;
        }
        // `None` until everything is written, so that the records are read again after a failure.
        snapshot.read_at = None;
        let mut touched = Vec::new();
        let result = change(&mut snapshot.table, &mut touched)?;
        header.begin_change();
        write(&self.file, &header.encode(), 0)?;
        self.write_slots(&snapshot.table, &mut touched)?;
        header.end_change();
        write(&self.file, &header.encode(), 0)?;
        snapshot.read_at = Some(header.changes);
        Ok(result)
    }

    /// Writes the touched records, adjacent ones in one call.
    fn write_slots(&self, table: &Table, touched: &mut [u32]) -> Result<()> {
        touched.sort_unstable();
        let neighbours = |a: &u32, b: &u32| a.checked_add(1) == Some(*b);
        for run in touched.chunk_by(neighbours) {
            for piece in run.chunks(SHARED_AV_RECORDS_PER_READ) {
                let encoded = piece.iter().filter_map(|index| {
                    let slot = table.slot(*index)?;
                    Some(record::encode(&slot, self.vector, *index))
                });
                let bytes: Vec<u8> = encoded.flatten().collect();
                write(&self.file, &bytes, record::offset(piece[0]))?;
            }
        }
        Ok(())
    }

    fn header(&self) -> Result<Header> {
        let header = read_header(&self.file)?;
        match header.vector == self.vector {
            true => Ok(header),
            false => Err(damaged("its file belongs to another vector")),
        }
    }
}

impl TableSnapshot {
    fn is_of(&self, header: &Header) -> bool {
        !header.changing && self.read_at == Some(header.changes)
    }

    fn read_all(&mut self, file: &File, vector: u32) -> Result<()> {
        self.read_at = None;
        self.table.clear();
        let mut bytes = vec![0; SHARED_AV_RECORDS_PER_READ * RECORD_SIZE];
        let mut index = 0;
        loop {
            let read = read(file, &mut bytes, record::offset(index))?;
            for record in bytes[..read].chunks_exact(RECORD_SIZE) {
                if index == SHARED_ADDRESSES_MAX {
                    return Ok(());
                }
                let slot = record::decode(record, vector, index);
                self.table.load(slot.unwrap_or(AddressSlot::RETIRED));
                index += 1;
            }
            if read < bytes.len() {
                return Ok(());
            }
        }
    }
}

fn read_header(file: &File) -> Result<Header> {
    let mut bytes = [0; RECORD_SIZE];
    let mut wrong = None;
    for _ in 0..SHARED_AV_READ_ATTEMPTS {
        let read = read(file, &mut bytes, 0)?;
        match Header::decode(&bytes[..read]) {
            Ok(header) => return Ok(header),
            Err(why) => wrong = Some(why),
        }
        std::thread::yield_now();
    }
    Err(damaged(wrong.unwrap_or("it has no header")))
}

fn damaged(why: &'static str) -> Error {
    let message = format!("the shared address vector cannot be used: {why}");
    Error::new(ErrorKind::Incompatible, message)
}

/// Reads until `bytes` is full or the file ends, and returns the number of bytes read.
fn read(file: &File, bytes: &mut [u8], offset: u64) -> Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::from_io(&error, "reading a shared address vector")),
        }
    }
    Ok(read)
}

fn write(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    let written = file.write_all_at(bytes, offset);
    written.map_err(|error| Error::from_io(&error, "writing a shared address vector"))
}

/// A lock between processes, until it is dropped. The kernel releases it if its process dies.
#[derive(Debug)]
struct FileLock<'a> {
    file: &'a File,
}

impl<'a> FileLock<'a> {
    fn take(file: &'a File) -> Result<Self> {
        lock(file)?;
        Ok(FileLock { file })
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // Cannot fail for a lock that is held.
        let _ = flock(self.file, FlockOperation::Unlock);
    }
}

/// Locks a file exclusively, until it is closed or unlocked.
fn lock(file: &File) -> Result<()> {
    let until = Instant::now() + SHARED_AV_LOCK_TIMEOUT;
    while !try_lock(file, FlockOperation::NonBlockingLockExclusive)? {
        if Instant::now() >= until {
            let message = "another process holds the lock of the shared address vector";
            return Err(Error::new(ErrorKind::Again, message));
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn try_lock(file: &File, operation: FlockOperation) -> Result<bool> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(Error::from_io(
                    &error.into(),
                    "locking a shared address vector",
                ));
            }
        }
    }
}

/// Returns whether this library never inserts such an address, so that other software must have
/// written the file.
pub(super) fn is_invalid_peer(address: SocketAddr) -> bool {
    address.ip().is_unspecified() || address.port() == 0
}
