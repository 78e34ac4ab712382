//! Plain TCP with calls that never block, repeated: the floor of all that spins.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Result, bail};

use super::pings::Pings;
use super::{payload, say, server_of};
use crate::job::EndConfig;

pub fn serve(config: &EndConfig) -> Result<()> {
    let listener = TcpListener::bind(config.job.any_port())?;
    say("PORT", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    prepare(&stream)?;
    let mut message = payload(config.job.size);
    loop {
        receive(&mut stream, &mut message)?;
        send(&mut stream, &message)?;
    }
}

pub fn call(config: &EndConfig) -> Result<()> {
    let mut stream = TcpStream::connect(server_of(config))?;
    prepare(&stream)?;
    let mut message = payload(config.job.size);
    let mut pings = Pings::new(config)?;
    loop {
        send(&mut stream, &message)?;
        receive(&mut stream, &mut message)?;
        if pings.add() {
            return Ok(());
        }
    }
}

fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    Ok(stream.set_nonblocking(true)?)
}

fn receive(stream: &mut TcpStream, mut rest: &mut [u8]) -> Result<()> {
    while !rest.is_empty() {
        match stream.read(rest) {
            Ok(0) => bail!("the other end has gone"),
            Ok(bytes) => rest = &mut rest[bytes..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn send(stream: &mut TcpStream, mut rest: &[u8]) -> Result<()> {
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(bytes) => rest = &rest[bytes..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
