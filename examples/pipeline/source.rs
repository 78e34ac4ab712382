//! The source of batches: an Arrow IPC file.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use tempfile::NamedTempFile;

/// A batch as it is sent: a complete Arrow stream, so that the peer needs nothing else.
pub struct Batch {
    pub rows: usize,
    pub bytes: Vec<u8>,
}

/// The batches of a file, read one by one.
pub fn open(path: &Path) -> Result<impl Iterator<Item = Result<Batch>> + Send + 'static> {
    let reader = FileReader::try_new(BufReader::new(File::open(path)?), None)?;
    Ok(reader.map(|batch| {
        let batch = batch?;
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
        writer.write(&batch)?;
        Ok(Batch {
            rows: batch.num_rows(),
            bytes: writer.into_inner()?,
        })
    }))
}

/// Creates a small file of measurements, which is deleted at the end.
pub fn make(batches: usize, rows: usize) -> Result<NamedTempFile> {
    let file = NamedTempFile::with_suffix(".arrow")?;
    let mut writer = None;
    for number in 0..batches {
        let ids = (number * rows) as i64..((number + 1) * rows) as i64;
        let values = ids.clone().map(|id| (id as f64).sin());
        let names = ids.clone().map(|id| format!("sensor {}", id % 97));
        let columns: [(&str, ArrayRef); 3] = [
            ("value", Arc::new(Float64Array::from_iter_values(values))),
            ("name", Arc::new(StringArray::from_iter_values(names))),
            ("id", Arc::new(Int64Array::from_iter_values(ids))),
        ];
        let batch = RecordBatch::try_from_iter(columns)?;
        if writer.is_none() {
            let into = BufWriter::new(file.reopen()?);
            writer = Some(FileWriter::try_new(into, &batch.schema())?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&batch)?;
        }
    }
    match writer {
        Some(mut writer) => writer.finish()?,
        None => anyhow::bail!("a file without batches"),
    }
    Ok(file)
}
