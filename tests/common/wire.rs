//! A victim's end of a connection: a socket, or TLS by hand over one.

use std::io::{Read, Write};
use std::net::TcpStream;

/// One end of a connection.
pub enum Wire {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Secure(Box<super::tls::HandMade>),
}

/// A frame of the survivor's.
pub struct Frame {
    pub op: u8,
    pub index: u8,
    pub words: Vec<u64>,
    pub payload: Vec<u8>,
}

/// The first operation of the extension; its others have higher numbers.
pub const HELLO: u8 = 0x80;

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

    /// What the proof of a key is bound to: a value that TLS exports. Nothing without TLS.
    pub fn binding(&self) -> Vec<u8> {
        match self {
            Wire::Plain(_) => Vec::new(),
            #[cfg(feature = "tls")]
            Wire::Secure(end) => end.export(b"EXPORTER-tokio-fabric-channel-binding"),
        }
    }

    /// Reads a control frame. Gives its kind and its private data.
    pub fn take_control(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 32];
        self.read_exact(&mut header).expect("a control frame");
        assert_eq!(header[0], 3, "the version of libfabric's protocol");
        let mut data = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]]))];
        self.read_exact(&mut data).expect("its private data");
        (header[1], data)
    }

    /// The next frame of libfabric's protocol.
    pub fn take_frame(&mut self) -> Frame {
        loop {
            let frame = self.take_any_frame();
            if frame.op < HELLO {
                return frame;
            }
        }
    }

    pub fn take_any_frame(&mut self) -> Frame {
        let mut base = [0; 16];
        self.read_exact(&mut base)
            .expect("a frame of the survivor's");
        let header_len = usize::from(base[6]);
        let frame_len = u64::from_ne_bytes(base[8..].try_into().expect("eight bytes")) as usize;
        let mut rest = vec![0; frame_len - 16];
        self.read_exact(&mut rest).expect("the rest of it");
        let payload = rest.split_off(header_len - 16);
        let words = rest.chunks_exact(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        Frame {
            payload,
            op: base[1],
            index: base[4],
            words: words.map(word).collect(),
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
