//! Memory for regions that own none.

use std::mem::forget;

use tokio_fabric::{
    Result,
    buf::{AddressRange, MappedBuffer},
};

/// Addresses of so many bytes, which are used through this range alone and stay mapped.
///
/// # Errors
/// The system has no such range of addresses left.
pub fn addresses(len: usize) -> Result<AddressRange> {
    let mut buffer = MappedBuffer::new(len)?;
    let start = buffer.as_mut_ptr();
    forget(buffer);
    // SAFETY: plain bytes to which no reference exists or will; they are never unmapped.
    Ok(unsafe { AddressRange::new(start, len) })
}
