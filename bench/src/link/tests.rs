//! Links between namespaces; they are skipped where these cannot be made.

use super::*;

/// `None` where it may not be made, which is said.
fn link(text: &str) -> Option<Link> {
    let has_ip = Command::new("ip").arg("-V").output().is_ok();
    if !rustix::process::geteuid().is_root() || !has_ip {
        println!("skipped: a link needs root and the program ip");
        return None;
    }
    Some(Link::new(text.parse().expect("a link"), 1).expect("root makes links"))
}

/// A connection between the hosts.
fn connection(link: &Link) -> [TcpStream; 2] {
    let listener = link.namespace(Role::Server);
    let listener = listener.within(|| Ok(TcpListener::bind((SERVER, 0))?));
    let listener = listener.expect("a listener");
    let to = listener.local_addr().expect("an address");
    let connect = || Ok(TcpStream::connect(to)?);
    let client = link.namespace(Role::Client).within(connect);
    let (server, _) = listener.accept().expect("a connection");
    [client.expect("a connection"), server]
}

/// The time of a round trip.
fn ping([client, server]: &mut [TcpStream; 2]) -> Duration {
    let begin = Instant::now();
    client.write_all(&[1]).expect("a ping");
    server.read_exact(&mut [0]).expect("a ping");
    server.write_all(&[1]).expect("a pong");
    client.read_exact(&mut [0]).expect("a pong");
    begin.elapsed()
}

/// Four megabits through a link of 100 Mbit/s take 40 ms at least, but for what the bucket holds.
#[test]
fn a_link_has_its_rate() {
    let Some(link) = link("100mbit") else { return };
    let [mut client, mut server] = connection(&link);
    let begin = Instant::now();
    let sending = std::thread::spawn(move || client.write_all(&vec![1; 500_000]));
    server.read_exact(&mut vec![0; 500_000]).expect("all of it");
    sending.join().expect("no panic").expect("all of it");
    assert!(begin.elapsed() > Duration::from_millis(29), "{begin:?}");
}

/// Both ways; and when it is cut, nothing arrives until it is mended.
#[test]
fn a_link_has_its_delay_and_can_be_cut() {
    let Some(link) = link("100mbit,20ms") else {
        return;
    };
    let mut ends = connection(&link);
    let time = ping(&mut ends);
    assert!(time >= Duration::from_millis(40), "{time:?}");
    let cut = link.cut().expect("it is cut");
    let [client, server] = &mut ends;
    client.write_all(&[1]).expect("the system takes it");
    let patience = Some(Duration::from_millis(100));
    server.set_read_timeout(patience).expect("an option");
    let heard = server.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(heard, Err(ErrorKind::WouldBlock));
    server.set_read_timeout(None).expect("an option");
    drop(cut);
    assert_eq!(server.read(&mut [0]).expect("it was sent again"), 1);
}

/// Bytes arrive whatever packets are lost.
#[test]
fn a_link_that_loses_packets_loses_no_bytes() {
    let Some(link) = link("100mbit,1%") else {
        return;
    };
    let [mut client, mut server] = connection(&link);
    let sending = std::thread::spawn(move || client.write_all(&vec![7; 1 << 20]));
    let mut bytes = vec![0; 1 << 20];
    server.read_exact(&mut bytes).expect("all of it");
    sending.join().expect("no panic").expect("all of it");
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn a_rate_that_the_relay_does_not_carry_is_refused() {
    if link("1mbit").is_none() {
        return;
    }
    let spec = "1000gbit,1ms".parse().expect("a link");
    let why = format!("{:#}", Link::new(spec, 1).expect_err("too much"));
    assert!(why.contains("relay") && why.contains("carries"), "{why}");
}
