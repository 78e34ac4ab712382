//! A method, for both ends of a connection.

use crate::wire::method_id;

/// A method of a service; the layers of a server get it from
/// [`Request::method`](crate::Request::method).
#[derive(Clone, Debug)]
pub struct Method {
    /// `Service/method`, with `#version` if it has one.
    pub name: &'static str,
    /// The types of its arguments and results as the codec sees them, such as `(u64,str)->[u8]`.
    pub signature: String,
    /// The number on the wire, which depends on the name and the signature.
    pub id: u32,
    /// True if the handler of a cancelled call continues to its end (`#[rpc(to_end)]`).
    pub to_end: bool,
    /// True if a call may be retried even if it may have run (`#[rpc(idempotent)]`).
    pub idempotent: bool,
    /// True if the handler runs in a task of its own from the beginning (`#[rpc(spawn)]`).
    pub spawn: bool,
}

impl Method {
    /// Returns whether `id`, which is not this method's number, is the number of the same name with
    /// another signature: the upper halves depend only on the name.
    pub(crate) fn is_named_like(&self, id: u32) -> bool {
        self.id >> 16 == id >> 16
    }
}

/// Describes a method. `flags`: to_end, idempotent, spawn.
pub fn described(name: &'static str, signature: String, flags: [bool; 3]) -> Method {
    let [to_end, idempotent, spawn] = flags;
    Method {
        name,
        id: method_id(name) ^ hash_of(&signature),
        signature,
        to_end,
        idempotent,
        spawn,
    }
}

/// Returns the signature's hash in 16 bits; 0 if it is empty, so that the number depends only on
/// the name.
fn hash_of(signature: &str) -> u32 {
    match signature {
        "" => 0,
        text => {
            let hash = method_id(text);
            (hash >> 16) ^ (hash & 0xffff)
        }
    }
}

/// The parts of a method's signature, as `#[service]` finds them.
#[derive(Debug, Default)]
pub struct Signature {
    /// The codec's shape of the arguments.
    pub arguments: String,
    /// `pull` or `push` for each piece of lent memory.
    pub lent: &'static [&'static str],
    /// The items of the stream that the client sends.
    pub sent: Option<String>,
    /// The result, or the items of a stream.
    pub result: String,
    /// Whether the result is a stream of values of `result`.
    pub received: bool,
    /// The method's own error.
    pub error: Option<String>,
}

/// Largest signature in bytes; a longer one is replaced by its hash.
const SIGNATURE_MAX: usize = 4096;

impl Signature {
    /// Writes the signature: `(u64,str)->[u8]`, `()+pull->u64`, `()+stream str->stream u64!Error`.
    pub fn write(&self) -> String {
        let mut text = self.arguments.clone();
        for right in self.lent {
            text.push('+');
            text.push_str(right);
        }
        if let Some(items) = &self.sent {
            text.push_str("+stream ");
            text.push_str(items);
        }
        text.push_str("->");
        if self.received {
            text.push_str("stream ");
        }
        text.push_str(&self.result);
        if let Some(error) = &self.error {
            text.push('!');
            text.push_str(error);
        }
        match text.len() > SIGNATURE_MAX {
            // 64 bits: the two halves hash different prefixes.
            true => format!(
                "{:08x}{:08x}",
                method_id(&text),
                method_id(&format!("#{text}"))
            ),
            false => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: &'static str, signature: &str) -> Method {
        described(name, signature.to_owned(), [false; 3])
    }

    #[test]
    fn a_number_has_the_name_in_its_upper_half_and_the_signature_in_its_lower() {
        let [one, other] = ["u64->()", "str->()"].map(|it| method("Sums/add", it));
        assert_ne!(one.id, other.id);
        assert!(one.is_named_like(other.id));
        assert!(!one.is_named_like(method("Sums/sub", "u64->()").id));
        // docs/rpc-wire.md: a port computes the same.
        assert_eq!(method("Hello/hello", "").id, method_id("Hello/hello"));
        assert_eq!(method("Hello/hello", "str->str").id, 0x52c6_c34c ^ 0xb127);
    }

    #[test]
    fn a_long_signature_is_a_hash_that_sees_all_of_it() {
        let of = |last: &str| Signature {
            arguments: "u64,".repeat(5_000) + last,
            ..Signature::default()
        };
        let (one, other) = (of("u8").write(), of("i8").write());
        assert!(one.len() == 16 && one != other);
    }
}
