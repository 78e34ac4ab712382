//! Plain TCP with blocking calls, without any runtime: the floor of all that sleeps.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Result, bail};

use super::meter::Meter;
use super::pings::Pings;
use super::receive_buffers::{ReceiveBuffers, messages};
use super::{payload, say, server_of};
use crate::job::{ANSWER_SIZE, EndConfig, Work};
use crate::sys;

pub fn serve(config: &EndConfig) -> Result<()> {
    let listener = TcpListener::bind(config.job.any_port())?;
    say("PORT", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let job = &config.job;
    match job.work {
        Work::PingPong => {
            let mut message = payload(job.size);
            loop {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)?;
            }
        }
        Work::Stream => {
            let mut receive_buffers = ReceiveBuffers::new(job);
            let mut unanswered = 0;
            loop {
                unanswered += read_some(&mut stream, &mut receive_buffers)?;
                for _ in 0..unanswered / job.batch() {
                    stream.write_all(&[0; ANSWER_SIZE])?;
                }
                unanswered %= job.batch();
            }
        }
        Work::Read => {
            for message in messages(job).iter().cycle() {
                stream.read_exact(&mut [0; ANSWER_SIZE])?;
                stream.write_all(message)?;
            }
            Ok(())
        }
        _ => {
            let mut receive_buffers = ReceiveBuffers::new(job);
            loop {
                read_some(&mut stream, &mut receive_buffers)?;
            }
        }
    }
}

pub fn call(config: &EndConfig, gather: bool) -> Result<()> {
    let mut stream = TcpStream::connect(server_of(config))?;
    stream.set_nodelay(true)?;
    match config.job.work {
        Work::PingPong => ping(config, &mut stream),
        Work::Stream => send(config, &mut stream, gather),
        Work::Write => push(config, &mut stream),
        Work::Read => fetch(config, &mut stream),
        Work::Death => {
            say("READY", "");
            let ended = stream.read(&mut [0; 64]);
            let now = sys::monotonic_ns();
            if let Ok(1..) = ended {
                bail!("a server that was killed has sent something");
            }
            say("ended_ns", now);
            Ok(())
        }
        work => bail!("blocking calls do no {work}"),
    }
}

fn ping(config: &EndConfig, stream: &mut TcpStream) -> Result<()> {
    let mut message = payload(config.job.size);
    let mut pings = Pings::new(config)?;
    loop {
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        if pings.add() {
            return Ok(());
        }
    }
}

fn send(config: &EndConfig, stream: &mut TcpStream, gather: bool) -> Result<()> {
    let job = &config.job;
    let messages = messages(job);
    let mut next = messages.iter().cycle();
    let gathered = if gather {
        messages.concat()
    } else {
        Vec::new()
    };
    let mut answers = ReceiveBuffers::of_answers();
    let mut meter = Meter::new(config);
    let mut credits = job.window;
    loop {
        if gather {
            stream.write_all(&gathered[..credits * job.size])?;
        } else {
            for message in next.by_ref().take(credits) {
                stream.write_all(message)?;
            }
        }
        credits = read_some(stream, &mut answers)? * job.batch();
        if meter.add(credits as u64) {
            return Ok(());
        }
    }
}

fn push(config: &EndConfig, stream: &mut TcpStream) -> Result<()> {
    let messages = messages(&config.job);
    let mut meter = Meter::new(config);
    for message in messages.iter().cycle() {
        stream.write_all(message)?;
        if meter.add(1) {
            break;
        }
    }
    Ok(())
}

fn fetch(config: &EndConfig, stream: &mut TcpStream) -> Result<()> {
    let mut receive_buffers = ReceiveBuffers::new(&config.job);
    let mut meter = Meter::new(config);
    let mut due = config.job.window;
    loop {
        for _ in 0..due {
            stream.write_all(&[0; ANSWER_SIZE])?;
        }
        due = read_some(stream, &mut receive_buffers)?;
        if due > 0 && meter.add(due as u64) {
            return Ok(());
        }
    }
}

/// Reads once. Gives the number of messages that are whole now.
fn read_some(stream: &mut TcpStream, receive_buffers: &mut ReceiveBuffers) -> Result<usize> {
    match stream.read(receive_buffers.room())? {
        0 => bail!("the other end has gone"),
        bytes => Ok(receive_buffers.took(bytes)),
    }
}
