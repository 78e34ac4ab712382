//! Checks of one hint against one offer, and the messages for a hint that is not met.

use std::borrow::Cow;
use std::fmt::{Debug, Display};

use bitflags::Flags;
use bitflags::parser::{WriteHex, to_writer};

use crate::error::{Error, ErrorKind, Result};

/// Returns a number of objects: as many as were asked for, by default `max`. Fails beyond `max`.
pub(super) fn count(hint: &'static str, asked: Option<usize>, max: usize) -> Result<usize> {
    limit(hint, asked, max)?;
    Ok(asked.filter(|count| *count != 0).unwrap_or(max))
}

/// Returns the offered value if it is at least the value asked for. A missing hint asks for 0.
pub(super) fn limit<T>(hint: &'static str, asked: Option<T>, offered: T) -> Result<T>
where
    T: Copy + Default + PartialOrd + Display,
{
    match asked.unwrap_or_default() {
        asked if asked > offered => Err(no_match(hint, asked, offered)),
        _ => Ok(offered),
    }
}

/// Returns the value asked for if it is offered. A missing hint, or the default value, gets the
/// first value offered.
pub(super) fn choose<T>(hint: &'static str, asked: Option<T>, offered: &[T]) -> Result<T>
where
    T: Copy + Default + PartialEq + Debug,
{
    let asked = asked.unwrap_or_default();
    if asked == T::default() {
        return Ok(offered[0]);
    }
    if offered.contains(&asked) {
        return Ok(asked);
    }
    let list = each_once(offered.iter().map(|one| format!("{one:?}")));
    Err(no_match(hint, format!("{asked:?}"), list))
}

/// Joins a list for a message, in its order, and names repeated entries once (an interface with
/// several addresses is listed several times).
pub(super) fn each_once(all: impl Iterator<Item = String>) -> String {
    let mut list: Vec<String> = Vec::new();
    for one in all {
        if !list.contains(&one) {
            list.push(one);
        }
    }
    list.join(", ")
}

pub(super) fn within<B>(hint: &'static str, asked: B, offered: B) -> Result<()>
where
    B: Flags + Copy,
    B::Bits: WriteHex,
{
    match beyond(asked, offered) {
        Some(missing) => Err(no_match(hint, names(missing), names(offered))),
        None => Ok(()),
    }
}

/// Returns the bits asked for beyond the allowed ones, unknown bits included; `None` if there are
/// none.
pub(super) fn beyond<B: Flags + Copy>(asked: B, allowed: B) -> Option<B> {
    let rest = asked.difference(allowed);
    (!rest.is_empty()).then_some(rest)
}

pub(super) fn names<B>(set: B) -> String
where
    B: Flags,
    B::Bits: WriteHex,
{
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = to_writer(&set, &mut text);
    if text.is_empty() {
        "none".to_owned()
    } else {
        text
    }
}

pub(super) fn no_match(hint: &str, asked: impl Display, offered: impl Display) -> Error {
    let message = format!("hint {hint}: asked for {asked}, offered {offered}");
    Error::new(ErrorKind::NoMatch, message)
}

pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

pub(super) fn bad_flags(message: String) -> Error {
    Error::new(ErrorKind::BadFlags, message)
}
