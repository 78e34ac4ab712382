//! How errors and traces show frames.

use super::*;

#[test]
fn errors_have_the_kinds_libfabric_gives_them() {
    for (error, kind) in [
        (WireError::ControlVersion(4), ErrorKind::Incompatible),
        (WireError::ControlDataSize(257), ErrorKind::Incompatible),
        (WireError::ControlProbe, ErrorKind::Incompatible),
        (WireError::ControlType(9), ErrorKind::ConnectionRefused),
        (WireError::TaggedOnMsg, ErrorKind::ProtocolViolation),
        (WireError::UnknownOp(9), ErrorKind::ProtocolViolation),
    ] {
        let seen = Error::from(error);
        assert_eq!(seen.kind(), kind);
        assert!(seen.to_string().contains(&error.to_string()));
    }
}

/// Issue: "`control frame of version 72`: an HTTP client spoke, say so".
#[test]
fn another_protocol_is_called_by_its_name() {
    let said = |first| Error::from(WireError::ControlVersion(first)).to_string();
    for first in [b'H', b'G'] {
        assert!(
            said(first).contains("the peer speaks HTTP"),
            "{}",
            said(first)
        );
    }
    assert!(said(0x16).contains("the peer speaks TLS"), "{}", said(0x16));
    assert!(said(4).contains("control frame of version 4, not 3"));
    assert!(said(0xff).contains("another protocol, not libfabric's"));
}

#[test]
fn traces_are_one_line() {
    let line = |text| header_of(decode(&frame(text, ByteOrder::Big), ByteOrder::Big)).to_string();
    assert_eq!(line(MESSAGE), "message 16 B");
    assert_eq!(line(MESSAGE_ACK_WANTED), "message 4 B, ack wanted");
    assert_eq!(line(ACK), "ack");
    assert_eq!(
        line(WRITE_DATA),
        "write 32 B at 0x4+32, cq data 0x123456789abcdef"
    );
    assert_eq!(line(READ_REQUEST), "read-request 32 B at 0x4+32");
    assert_eq!(line(READ_RESPONSE), "read-response 32 B");
    assert_eq!(line(TAGGED), "tagged 16 B, tag 0x4d2");
    assert_eq!(line(TAGGED_RTS), "tagged-announcement #1 20000 B, tag 0x1");
    assert_eq!(line(CTS), "clear-to-send #1");
    assert_eq!(line(RENDEZVOUS_DATA), "rendezvous-data #1 20000 B");
    assert_eq!(
        control(ControlKind::Reject, b"01").to_string(),
        "connect reject, 2 B of data"
    );
}

#[test]
fn neither_keys_nor_private_data_are_shown() {
    const KEY: u64 = 0xdead_beef_0bad_f00d;
    let header = write(None, segments(&[(1, 2, KEY)]));
    let bytes = header.encode(ByteOrder::Native, 0);
    let frame = control(ControlKind::Request, b"secret");
    let shown = format!("{header:?} {header} {bytes:?} {frame:?} {frame}");
    for secret in [
        KEY.to_string(),
        format!("{KEY:x}"),
        "secret".to_string(),
        format!("{:?}", b"secret"),
    ] {
        assert!(!shown.contains(&secret), "{shown} has {secret}");
    }
}
