//! The source of the client's bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Bytes that one call lends.
const WINDOW: usize = 16 << 20;

/// The data to transfer, and the digest of the bytes read so far.
pub struct Source {
    pub name: String,
    /// The total number of bytes, if known (a pipe's is not).
    pub len: Option<u64>,
    pub hasher: blake3::Hasher,
    input: Box<dyn Read + Send>,
}

impl Source {
    fn new(name: String, len: Option<u64>, input: impl Read + Send + 'static) -> Source {
        let (hasher, input) = (blake3::Hasher::new(), Box::new(input));
        Source {
            name,
            len,
            hasher,
            input,
        }
    }

    pub fn open(path: &Path) -> Result<Source> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        let metadata = file.metadata().context("cannot read it")?;
        ensure!(!metadata.is_dir(), "{name} is a directory");
        let len = metadata.is_file().then_some(metadata.len());
        Ok(Source::new(name, len, file))
    }

    pub fn generated(len: u64) -> Source {
        Source::new("generated data".to_owned(), Some(len), Numbers(0).take(len))
    }

    /// Reads the next bytes into the given memory; none at the end.
    pub fn fill(mut self, mut window: Vec<u8>) -> Result<(Source, Vec<u8>)> {
        window.clear();
        window.reserve_exact(WINDOW);
        let mut next = self.input.by_ref().take(WINDOW as u64);
        let read = next.read_to_end(&mut window);
        read.with_context(|| format!("cannot read {}", self.name))?;
        self.hasher.update(&window);
        Ok((self, window))
    }
}

/// Numbers that do not repeat, so that lost, doubled or swapped bytes change the digest.
struct Numbers(u64);

impl Read for Numbers {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        for piece in into.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            piece.copy_from_slice(&self.0.to_le_bytes()[..piece.len()]);
        }
        Ok(into.len())
    }
}
