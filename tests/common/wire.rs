//! A victim's end of a connection: a socket, or TLS by hand over one.

use std::io::{Read, Write};
use std::net::TcpStream;

/// One end of a connection.
pub enum Wire {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Secure(Box<super::tls::HandMade>),
}

/// How far a victim comes with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsStep {
    /// It sends nothing.
    Nothing,
    /// Half of its first flight.
    HalfFlight,
    /// All but the end of its last flight.
    Unfinished,
    /// The whole handshake.
    Done,
}

impl Wire {
    /// The end that has dialled. `None`: without TLS.
    pub fn dialled(socket: TcpStream, tls: Option<TlsStep>) -> Wire {
        match tls {
            None => Wire::Plain(socket),
            #[cfg(feature = "tls")]
            Some(step) => Wire::Secure(Box::new(super::tls::HandMade::client(socket, step))),
            #[cfg(not(feature = "tls"))]
            Some(_) => unreachable!("the feature is off"),
        }
    }

    /// The end that was dialled.
    pub fn accepted(socket: TcpStream, tls: Option<TlsStep>) -> Wire {
        match tls {
            None => Wire::Plain(socket),
            #[cfg(feature = "tls")]
            Some(step) => Wire::Secure(Box::new(super::tls::HandMade::server(socket, step))),
            #[cfg(not(feature = "tls"))]
            Some(_) => unreachable!("the feature is off"),
        }
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Wire::Secure(end) => end.socket(),
        }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.write_all(bytes).expect("the survivor is there");
    }

    /// Sends half of the record that these bytes are sealed in.
    pub fn put_half_a_record(&mut self, bytes: &[u8]) {
        match self {
            Wire::Plain(_) => unreachable!("{} bytes, which are no record", bytes.len()),
            #[cfg(feature = "tls")]
            Wire::Secure(end) => end.put_half_a_record(bytes),
        }
    }

    /// Says that nothing more will come, in TLS.
    pub fn close_notify(&mut self) {
        match self {
            Wire::Plain(_) => {}
            #[cfg(feature = "tls")]
            Wire::Secure(end) => end.close_notify(),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(into),
            #[cfg(feature = "tls")]
            Wire::Secure(end) => end.read(into),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.write(bytes),
            #[cfg(feature = "tls")]
            Wire::Secure(end) => end.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
