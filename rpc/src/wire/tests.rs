//! The bytes of the page `docs/rpc-wire.md`, and what becomes of any others.

use proptest::prelude::*;
use tokio_fabric::{Access, RemoteRegion};

use super::*;
use crate::limits::{BATCH_BYTES_MAX, BODY_MAX, FRAME_MAX, HEADER_LEN, METADATA_MAX};
use crate::status::{Code, Status};

const CALL: CallId = CallId {
    slot: 5,
    generation: 0x0102,
};

/// The hexadecimal of the page's example of this name.
fn golden(name: &str) -> Vec<u8> {
    let page = include_str!("../../../docs/rpc-wire.md");
    let head = format!("`{name}`");
    let below = page.lines().skip_while(|line| !line.starts_with(&head));
    let mut block = below.skip_while(|line| !line.starts_with("```")).skip(1);
    let digits: String = block
        .by_ref()
        .take_while(|line| !line.starts_with("```"))
        .collect();
    let digits: Vec<char> = digits.chars().filter(|it| !it.is_whitespace()).collect();
    assert!(!digits.is_empty(), "the page has no example {name}");
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn trace() -> TraceContext {
    TraceContext {
        trace_id: *b"0123456789abcdef",
        span_id: *b"ABCDEFGH",
        flags: 1,
    }
}

#[test]
fn a_plain_request_is_as_the_page_says() {
    let mut frame = empty_frame();
    frame.extend_from_slice(&[5, b'w', b'o', b'r', b'l', b'd']);
    let head = FrameHead {
        call: CALL,
        method_or_code: method_id("Hello/hello"),
        time_us: 50_000,
    };
    write_request_head(&mut frame, head);
    assert_eq!(frame[..], golden("plain request"));
    let Frame::Request(request) = Frame::decode(&frame).unwrap() else {
        panic!()
    };
    assert_eq!(
        (request.call, request.method),
        (CALL, method_id("Hello/hello"))
    );
    assert_eq!((request.budget_us, request.trace), (50_000, None));
    assert_eq!(request.body, b"\x05world");
}

#[test]
fn a_batch_is_as_the_page_says() {
    let frames = [encode_cancel(CALL), encode_taken(CALL)];
    let mut batch = BatchBuf::default();
    batch.push(&frames[0]);
    assert_eq!(batch.message(), frames[0], "one is no batch");
    assert_eq!(batch.take(), &frames[0][..]);
    assert!(batch.message().is_empty());
    frames.iter().for_each(|it| batch.push(it));
    let message = batch.take();
    assert_eq!(message, golden("batch"));
    assert!(batch.message().is_empty());
    let mut found = Vec::new();
    let whole = each_frame(&message, |frame| {
        found.push(frame);
        Ok(())
    });
    assert_eq!(
        (whole, found),
        (Ok(()), frames.iter().map(|it| &it[..]).collect())
    );
    // Too many of the smallest, and too many bytes.
    while batch.has_room(0) {
        batch.push(&[]);
    }
    assert_eq!(each_frame(batch.message(), |_| Ok(())), Ok(()));
    batch.push(&[]);
    assert!(each_frame(batch.message(), |_| Ok(())).is_err());
    batch.clear();
    assert!(batch.has_room(BATCH_BYTES_MAX - 6) && !batch.has_room(BATCH_BYTES_MAX - 5));
}

#[test]
fn a_request_with_everything_is_as_the_page_says() {
    let mut metadata = Metadata::default();
    metadata.push("tenant", b"blue").unwrap();
    let lent = RemoteRegion {
        access: Access::REMOTE_READ,
        ..RemoteRegion::new(0, 4096, 0x1122_3344_5566_7788)
    };
    let mut frame = empty_frame();
    frame.extend_from_slice(b"body");
    let prefix = Prefix {
        trace: Some(&trace()),
        metadata: &metadata,
        lent: &[lent],
        streams: Streams::default(),
        is_by_reference: false,
    };
    assert_eq!(prefix.len(), golden("request with everything").len() - 20);
    insert_prefix(&mut frame, &prefix);
    let head = FrameHead {
        call: CALL,
        method_or_code: 0xaabb_ccdd,
        time_us: 0,
    };
    write_request_head(&mut frame, head);
    assert_eq!(frame[..], golden("request with everything"));
    let Frame::Request(request) = Frame::decode(&frame).unwrap() else {
        panic!()
    };
    assert_eq!(request.trace, Some(trace()));
    assert_eq!(request.lent[..], [lent]);
    assert_eq!(metadata_of(&request).value("tenant"), Some(&b"blue"[..]));
    assert_eq!(request.body, b"body");
}

#[test]
fn responses_are_as_the_page_says() {
    let head = |code| FrameHead {
        call: CALL,
        method_or_code: code,
        time_us: 7,
    };
    let mut answer = empty_frame();
    answer.push(42);
    answer[..HEADER_LEN].copy_from_slice(&response_head(head(0), false));
    assert_eq!(answer[..], golden("response"));
    let status = Status::not_started(Code::Overloaded, "full");
    let status = status.with_retry_after(std::time::Duration::from_millis(10));
    let mut refusal = encode_status(&status);
    let refused = response_head(head(status.code().number()), true);
    refusal[..HEADER_LEN].copy_from_slice(&refused);
    assert_eq!(refusal[..], golden("refusal"));
    let Frame::Response(response) = Frame::decode(&refusal).unwrap() else {
        panic!()
    };
    assert!(response.not_started);
    let back = Status::decode(response.code, response.not_started, response.body);
    assert_eq!(back.to_string(), status.to_string());
    assert_eq!(back.retry_after(), status.retry_after());
}

fn body_region() -> RemoteRegion {
    RemoteRegion {
        access: Access::REMOTE_READ,
        ..RemoteRegion::new(0, 1 << 20, 0x1122_3344_5566_7788)
    }
}

#[test]
fn bodies_by_reference_are_as_the_page_says() {
    let mut frame = reference_frame(&body_region());
    let streams = Streams {
        sends: true,
        receives: true,
    };
    let prefix = Prefix {
        trace: None,
        metadata: &Metadata::default(),
        lent: &[],
        streams,
        is_by_reference: true,
    };
    insert_prefix(&mut frame, &prefix);
    let head = |word, time_us| FrameHead {
        call: CALL,
        method_or_code: word,
        time_us,
    };
    write_request_head(&mut frame, head(0xaabb_ccdd, 0));
    assert_eq!(frame[..], golden("request by reference"));
    let Frame::Request(request) = Frame::decode(&frame).unwrap() else {
        panic!()
    };
    assert_eq!(request.by_reference, Some(body_region()));
    assert_eq!((request.streams, request.body), (streams, &[][..]));
    let mut frame = reference_frame(&body_region());
    write_reference_head(&mut frame, head(0, 7));
    assert_eq!(frame[..], golden("response by reference"));
    let Frame::Response(response) = Frame::decode(&frame).unwrap() else {
        panic!()
    };
    assert_eq!(response.by_reference, Some(body_region()));
    assert_eq!((response.code, response.body), (0, &[][..]));
    assert_eq!(encode_taken(CALL)[..], golden("taken"));
    assert_eq!(Frame::decode(&encode_taken(CALL)), Ok(Frame::Taken(CALL)));
}

#[test]
fn frames_of_streams_are_as_the_page_says() {
    let mut item = empty_frame();
    item.push(42);
    write_item_head(&mut item, CALL);
    let credit = Credit {
        items: 8,
        bytes: 256,
    };
    let window = Window {
        calls: 16,
        bytes: 65_536,
    };
    let last = encode_last(CALL);
    let begun = encode_begun(CALL);
    let (more, moved) = (encode_credit(CALL, credit), encode_window(window));
    let frames: [(&str, &[u8], Frame<'_>); 5] = [
        ("item", &item, Frame::Item(CALL, Item::Body(&[42]))),
        ("last item", &last, Frame::Item(CALL, Item::Last)),
        ("stream begun", &begun, Frame::Item(CALL, Item::Begun)),
        ("credit", &more, Frame::Credit(CALL, credit)),
        ("window", &moved, Frame::Window(window)),
    ];
    for (name, bytes, frame) in frames {
        assert_eq!(bytes, golden(name), "{name}");
        assert_eq!(Frame::decode(bytes), Ok(frame), "{name}");
    }
}

#[test]
fn cancel_and_goaway_are_as_the_page_says() {
    assert_eq!(encode_cancel(CALL)[..], golden("cancel"));
    assert_eq!(encode_goaway()[..], golden("goaway"));
    assert_eq!(Frame::decode(&encode_cancel(CALL)), Ok(Frame::Cancel(CALL)));
    assert_eq!(Frame::decode(&encode_goaway()), Ok(Frame::Goaway));
}

#[test]
fn a_hello_and_a_rejection_are_as_the_page_says() {
    let hello = Hello {
        codec: CodecName::new("postcard"),
        ..Hello::default()
    };
    assert_eq!(hello.encode()[..], golden("hello"));
    assert_eq!(hello.codec.to_string(), "postcard");
    assert_eq!(CodecName::new("prost").to_string(), "prost");
    assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    let status = Status::not_started(Code::Draining, "bye");
    let rejection = Rejection::encode(&status);
    assert_eq!(rejection, golden("rejection"));
    let back = Rejection::decode(&rejection).unwrap();
    assert_eq!(back.to_string(), status.to_string());
    let long = Status::not_started(Code::Draining, "x".repeat(1000));
    assert!(Rejection::encode(&long).len() <= tokio_fabric::limits::CM_DATA_SIZE_MAX);
}

/// "A client whose authorization key has a name appends it."
#[test]
fn the_name_of_a_key_is_behind_the_hello_as_the_page_says() {
    let (hello, name) = (Hello::default(), "caf\u{e9}-2");
    let bytes = hello.encode_with_key(Some(name));
    assert_eq!(bytes, golden("named hello"));
    assert_eq!(key_name(&bytes), Some(name));
    assert_eq!(Hello::decode(&bytes), Ok(hello));
    assert_eq!(hello.encode_with_key(None), hello.encode());
    assert_eq!(key_name(&hello.encode()), None);
    let longest = "x".repeat(32);
    let bytes = hello.encode_with_key(Some(&longest));
    assert_eq!(key_name(&bytes), Some(&longest[..]));
    // Cut off, of no length, of one beyond the largest, and no text.
    assert_eq!(key_name(&bytes[..bytes.len() - 1]), None);
    for appended in [
        &b"\0"[..],
        &[&[33], &[b'x'; 33][..]].concat(),
        b"\x02\xff\xff",
    ] {
        let bytes = [&hello.encode()[..], appended].concat();
        assert_eq!(key_name(&bytes), None, "{appended:?}");
    }
}

#[test]
fn a_hello_of_others_is_refused_in_words() {
    let good = Hello::default().encode();
    let wrong = |change: fn(&mut [u8])| {
        let mut bytes = good;
        change(&mut bytes);
        Hello::decode(&bytes).unwrap_err().text("client", "server")
    };
    assert!(wrong(|it| it[0] = b'X').contains("not a peer"));
    let both = "the client speaks version 2 of the protocol of calls, and this server version 1";
    assert_eq!(wrong(|it| it[4] = 2), both);
    assert!(wrong(|it| it[8..12].fill(0)).contains("window"));
    assert!(Hello::decode(&good[..47]).is_err());
    // Of a later version.
    assert!(Hello::decode(&[&good[..], b"more"].concat()).is_ok());
    assert!(Rejection::decode(b"no idea").is_none());
}

#[test]
fn frames_that_break_the_rules_are_violations() {
    let request = golden("request with everything");
    let plain = golden("plain request");
    let changed = |from: &[u8], at: usize, to: u8| {
        let mut bytes = from.to_vec();
        bytes[at] = to;
        bytes
    };
    let wrong = [
        ("empty", Vec::new()),
        ("short", plain[..HEADER_LEN - 1].to_vec()),
        ("long", vec![0; FRAME_MAX + 1]),
        ("kind 0", changed(&plain, 0, 0)),
        ("kind 9", changed(&plain, 0, 9)),
        ("unknown flag", changed(&plain, 1, 0x80)),
        ("five pieces of lent memory", changed(&plain, 1, 5 << 1)),
        ("a trace that is not there", changed(&plain, 1, 1)),
        ("lent memory that is not there", changed(&plain, 1, 1 << 1)),
        ("metadata that is not there", changed(&plain, 2, 0xff)),
        (
            "metadata that is no text",
            changed(&request, HEADER_LEN + 25 + 3, 0xff),
        ),
        (
            "a name beyond the metadata",
            changed(&request, HEADER_LEN + 25, 0xff),
        ),
        (
            "rights of both kinds",
            changed(&request, HEADER_LEN + 25 + 13 + 25, 0x30),
        ),
        (
            "a result of a call not started",
            changed(&golden("response"), 1, 1),
        ),
        (
            "an unknown flag of a response",
            changed(&golden("response"), 1, 2),
        ),
        ("metadata of a response", changed(&golden("response"), 2, 1)),
        ("the eighth flag of a request", changed(&plain, 1, 0x80)),
        ("a reference that is none", changed(&plain, 1, 0x10)),
        (
            "a body of 16 MiB and a little",
            changed(&golden("request by reference"), 27, 1),
        ),
        (
            "an answer of 16 MiB and a little",
            changed(&golden("response by reference"), 27, 1),
        ),
        (
            "a body to be written to",
            changed(&golden("request by reference"), 41, 0x20),
        ),
        (
            "more behind a reference",
            [golden("response by reference"), vec![0]].concat(),
        ),
        (
            "the first item that is the last",
            changed(&golden("item"), 1, 1),
        ),
        ("an item of both kinds", changed(&golden("last item"), 1, 3)),
        ("an item with a number", changed(&golden("item"), 9, 1)),
        ("a long credit", [golden("credit"), vec![0]].concat()),
        ("a window of a call", changed(&golden("window"), 4, 1)),
        ("a long taken", [golden("taken"), vec![0]].concat()),
        ("a long cancel", [golden("cancel"), vec![0]].concat()),
        ("a flag of a cancel", changed(&golden("cancel"), 1, 1)),
        ("a goaway of a call", changed(&golden("goaway"), 4, 1)),
    ];
    for (what, bytes) in wrong {
        assert!(Frame::decode(&bytes).is_err(), "{what} was taken");
    }
}

#[test]
fn metadata_has_its_bounds() {
    let mut metadata = Metadata::default();
    for at in 0..16 {
        metadata.push(&format!("name {at}"), b"value").unwrap();
    }
    assert_eq!(
        metadata.push("one more", b"").unwrap_err().code(),
        Code::TooLarge
    );
    assert_eq!(metadata.iter().count(), 16);
    let mut large = Metadata::default();
    assert!(large.push("name", &[0; METADATA_MAX]).is_err());
    large.push("name", &[0; METADATA_MAX - 7]).unwrap();
    assert!(large.push("", b"").is_err());
    assert!(
        Metadata::check(&[0; 17 * 3]).is_err(),
        "seventeen empty entries"
    );
}

proptest! {
    /// G12: "what a peer sends leads to a status or a closed connection".
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..10_u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let mut batch = bytes.clone();
        batch.splice(..batch.len().min(4), [9, 0, 0, 0]);
        let _ = each_frame(&batch, |_| Ok(()));
        match Frame::decode(&bytes) {
            Ok(Frame::Request(request)) => {
                let metadata = metadata_of(&request);
                prop_assert!(metadata.iter().count() <= 16);
                prop_assert!(request.lent.len() <= 4);
                prop_assert!(request.by_reference.is_none_or(|it| it.len <= BODY_MAX as u64));
            }
            Ok(Frame::Response(response)) => {
                prop_assert!(response.by_reference.is_none_or(|it| it.len <= BODY_MAX as u64));
            }
            _ => {}
        }
        let _ = Hello::decode(&bytes);
        let _ = Rejection::decode(&bytes);
    }

    #[test]
    fn changed_frames_do_not_panic(
        of in 0..6_usize, at in 0..100_usize, to in any::<u8>(), cut in 0..110_usize
    ) {
        let names = [
            "request with everything",
            "request by reference",
            "response by reference",
            "item",
            "credit",
            "window",
        ];
        let mut bytes = golden(names[of]);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        bytes.truncate(cut);
        let _ = Frame::decode(&bytes);
    }
}

fn metadata_of(request: &Request<'_>) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set_checked(request.metadata);
    metadata
}
