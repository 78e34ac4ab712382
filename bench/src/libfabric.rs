//! The C driver of libfabric, compiled when the bench runs: nothing here links libfabric.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Compiles the driver; returns its path.
///
/// # Errors
/// What is missing.
pub fn compile() -> Result<PathBuf> {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "libfabric"])
        .output()
        .context("pkg-config cannot be run")?;
    if !flags.status.success() {
        bail!("pkg-config does not know libfabric (package libfabric-dev)");
    }
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let program = std::env::current_exe()?.with_file_name("fabric-bench-libfabric");
    // Compiled apart and put in place in one step: another bench may be running.
    let fresh = program.with_extension(std::process::id().to_string());
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&fresh)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c/driver.c"))
        .args(flags.split_whitespace())
        .output()
        .with_context(|| format!("the C compiler {} cannot be run", compiler.display()))?;
    if !output.status.success() {
        bail!(
            "the driver does not compile:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    std::fs::rename(&fresh, &program)?;
    Ok(program)
}
