//! Where the client's bytes come from, and the thread that brings them into registered memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_fabric::mr::Quiesced;

/// What to transfer.
#[derive(Debug)]
pub enum Source {
    File {
        file: File,
        path: PathBuf,
        len: Option<u64>,
    },
    /// Numbers that differ at every eighth byte, made as fast as memory takes them: a piece that is
    /// lost, doubled or swapped changes the digest.
    Generated { len: u64, made: u64 },
}

impl Source {
    pub fn open(path: &Path) -> Result<Source> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let metadata = file
            .metadata()
            .with_context(|| format!("cannot read {}", path.display()))?;
        if metadata.is_dir() {
            anyhow::bail!("{} is a directory", path.display());
        }
        let len = metadata.is_file().then_some(metadata.len());
        Ok(Source::File {
            file,
            path: path.to_owned(),
            len,
        })
    }

    pub fn generated(len: u64) -> Source {
        Source::Generated { len, made: 0 }
    }

    /// How many bytes will come, if that is known (a pipe's are not).
    pub fn len(&self) -> Option<u64> {
        match self {
            Source::File { len, .. } => *len,
            Source::Generated { len, .. } => Some(*len),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Source::File { path, .. } => path.display().to_string(),
            Source::Generated { .. } => "generated data".to_owned(),
        }
    }

    /// Fills `into` from the start. Fewer bytes than fit are the last.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize> {
        match self {
            Source::File { file, path, .. } => {
                let mut filled = 0;
                while filled < into.len() {
                    match file.read(&mut into[filled..]) {
                        Ok(0) => break,
                        Ok(count) => filled += count,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(error) => {
                            return Err(error)
                                .with_context(|| format!("cannot read {}", path.display()));
                        }
                    }
                }
                Ok(filled)
            }
            Source::Generated { len, made } => {
                let left = usize::try_from(*len - *made).unwrap_or(usize::MAX);
                let count = left.min(into.len());
                generate(&mut into[..count], *made);
                *made += count as u64;
                Ok(count)
            }
        }
    }
}

/// Bytes `at..` of the generated data. Only its last piece may begin or end within eight bytes.
fn generate(into: &mut [u8], at: u64) {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut word = (at / 8).wrapping_mul(STEP);
    let mut next = || {
        word = word.wrapping_add(STEP);
        word.to_le_bytes()
    };
    let mut pieces = into.chunks_exact_mut(8);
    for piece in &mut pieces {
        piece.copy_from_slice(&next());
    }
    let rest = pieces.into_remainder();
    rest.copy_from_slice(&next()[..rest.len()]);
}

/// A window that holds the source's next bytes.
#[derive(Debug)]
pub struct Filled {
    pub window: usize,
    pub len: usize,
    /// The source has no more.
    pub last: bool,
}

/// Fills windows and digests what it puts there, in order, on a thread of its own: neither stops
/// the runtime that moves the windows filled before.
pub struct Filler {
    empty: mpsc::Sender<(usize, Quiesced)>,
    filled: mpsc::Receiver<Result<Filled>>,
    thread: JoinHandle<blake3::Hash>,
}

impl Filler {
    pub fn start(mut source: Source, windows: usize) -> Filler {
        let (empty, mut to_fill) = mpsc::channel::<(usize, Quiesced)>(windows);
        let (done, filled) = mpsc::channel(windows);
        let thread = tokio::task::spawn_blocking(move || {
            let mut hasher = blake3::Hasher::new();
            while let Some((window, mut bytes)) = to_fill.blocking_recv() {
                let result = source.fill(&mut bytes).map(|len| {
                    hasher.update(&bytes[..len]);
                    Filled {
                        window,
                        len,
                        last: len < bytes.len(),
                    }
                });
                // Peers may read the window only after it was announced.
                drop(bytes);
                if done.blocking_send(result).is_err() {
                    break;
                }
            }
            hasher.finalize()
        });
        Filler {
            empty,
            filled,
            thread,
        }
    }

    /// Hands over a window; there are never more than it was started for.
    pub async fn fill(&self, window: usize, bytes: Quiesced) -> Result<()> {
        self.empty
            .send((window, bytes))
            .await
            .ok()
            .context("the thread that reads the source has gone")
    }

    /// The next window that is full. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Filled> {
        self.filled
            .recv()
            .await
            .context("the thread that reads the source has gone")?
    }

    /// The digest of all that was filled.
    pub async fn finish(self) -> Result<blake3::Hash> {
        drop(self.empty);
        Ok(self.thread.await?)
    }
}
