//! Finds how serde describes a type to a format that does not describe itself: the primitives that
//! it reads, in order. The tracer lets the type deserialize made-up values.

use std::fmt;

use serde::de::value::U32Deserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};

use crate::caught::caught;

/// Largest number of values in a shape. A longer shape is cut there, so that no type takes long.
const VALUES_MAX: usize = 2048;
/// Largest number of attempts at a type that refuses its made-up values.
const ATTEMPTS_MAX: usize = 64;

/// Returns the shape of a type: its values on the wire, with the names of fields and without the
/// names of types. An enum contributes only its first variant, so that variants may be appended.
///
/// A type that refuses a value is given other values. If it accepts none, the shape ends there,
/// with `!`.
pub(super) fn of<T: DeserializeOwned>() -> String {
    let mut guesses = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let mut tracer = Tracer {
            shape: String::new(),
            guesses: &guesses,
            guessed: 0,
            values: 0,
            names: Vec::new(),
            repeats: 0,
        };
        let read = caught("reading made-up values", || {
            T::deserialize(&mut tracer).is_ok()
        });
        let (shape, guessed) = (tracer.shape, tracer.guessed);
        if read == Some(true) {
            return shape;
        }
        // The last value is the one that was refused, as far as can be known.
        guesses.resize(guessed, 0);
        match guesses.last_mut() {
            Some(last) if *last < GUESSES - 1 => *last += 1,
            _ => return shape + "!",
        }
    }
    String::from("!")
}

/// Number of guesses of each kind; the most likely guesses come first.
const GUESSES: usize = 7;
const NUMBERS: [u8; GUESSES] = [1, 0, 2, 3, 4, 7, 64];
const TEXTS: [&str; GUESSES] = [
    "",
    "0",
    "a",
    "127.0.0.1",
    "127.0.0.1:80",
    "1970-01-01T00:00:00Z",
    "00000000-0000-0000-0000-000000000000",
];
const LENGTHS: [usize; GUESSES] = [0, 16, 32, 8, 4, 12, 64];

struct Tracer<'a> {
    shape: String,
    /// The guess of each value that an earlier attempt has reached.
    guesses: &'a [usize],
    guessed: usize,
    values: usize,
    /// The types that are being read, outermost first.
    names: Vec<&'static str>,
    /// How many of the types in `names` are within a type of the same name.
    repeats: usize,
}

/// A type refused a value, or its shape is too long or nested too deep.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Refused {
        Refused
    }
}

impl Tracer<'_> {
    /// Writes a value to the shape, and returns the number of its guess.
    fn value(&mut self, kind: &str) -> Result<usize, Refused> {
        self.values += 1;
        if self.values > 2 * VALUES_MAX {
            return Err(Refused);
        }
        self.shape.push_str(kind);
        self.guessed += 1;
        Ok(self.guesses.get(self.guessed - 1).copied().unwrap_or(0))
    }

    /// Returns whether a type that may be empty is left empty: within itself, or in a long shape.
    fn is_at_end(&self) -> bool {
        self.repeats > 0 || self.values > VALUES_MAX
    }

    /// Reads a type with a name.
    fn within<R>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self, usize) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let outer = self.names.iter().filter(|it| **it == name).count();
        if self.names.len() > crate::limits::NESTING_MAX {
            return Err(Refused);
        }
        let repeats = usize::from(outer > 0);
        self.names.push(name);
        self.repeats += repeats;
        let value = read(self, outer);
        self.repeats -= repeats;
        self.names.pop();
        value
    }

    /// Reads the elements of a tuple or a struct.
    fn elements<'de, V: Visitor<'de>>(
        &mut self,
        len: usize,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (open, close) = if fields.is_empty() {
            ('(', ')')
        } else {
            ('{', '}')
        };
        self.shape.push(open);
        let value = visitor.visit_seq(Elements::new(self, len, fields))?;
        self.shape.push(close);
        Ok(value)
    }

    /// The number of elements that represent a collection.
    fn len(&self) -> usize {
        usize::from(!self.is_at_end())
    }
}

/// The elements of a tuple, a struct or a collection.
struct Elements<'a, 't> {
    tracer: &'a mut Tracer<'t>,
    left: usize,
    fields: std::slice::Iter<'static, &'static str>,
    /// The last element's position in the shape and its text, and how often it is repeated.
    at: usize,
    last: String,
    alike: usize,
}

impl<'a, 't> Elements<'a, 't> {
    fn new(tracer: &'a mut Tracer<'t>, left: usize, fields: &'static [&'static str]) -> Self {
        Elements {
            tracer,
            left,
            fields: fields.iter(),
            at: 0,
            last: String::new(),
            alike: 0,
        }
    }
}

impl<'de> de::SeqAccess<'de> for Elements<'_, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if self.alike > 0 {
            self.tracer.shape.push(',');
        }
        let begun = self.tracer.shape.len();
        if let Some(field) = self.fields.next() {
            self.tracer.shape.push_str(field);
            self.tracer.shape.push(':');
        }
        let value = seed.deserialize(&mut *self.tracer)?;
        let shape = &mut self.tracer.shape;
        // Writes repeated elements as in `(u8*16)`, an array.
        if self.alike > 0 && self.last == shape[begun..] {
            self.alike += 1;
            shape.truncate(self.at);
            shape.push_str(&format!("{}*{}", self.last, self.alike));
        } else {
            (self.at, self.alike) = (begun, 1);
            self.last = shape[begun..].to_owned();
        }
        Ok(Some(value))
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        match self.left {
            0 => Ok(None),
            _ => {
                self.left -= 1;
                seed.deserialize(&mut *self.tracer).map(Some)
            }
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refused> {
        self.tracer.shape.push(':');
        seed.deserialize(&mut *self.tracer)
    }
}

struct Variant<'a, 't>(&'a mut Tracer<'t>, u32);

impl<'de, 'a, 't> de::EnumAccess<'de> for Variant<'a, 't> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refused> {
        let index: U32Deserializer<Refused> = self.1.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, '_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refused> {
        self.0.shape.push(' ');
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Refused> {
        self.0.elements(len, &[], visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.0.elements(fields.len(), fields, visitor)
    }
}

/// Values of one kind.
macro_rules! values {
    ($($read:ident $kind:literal $visit:ident |$guess:ident| $value:expr;)*) => {$(
        fn $read<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
            let $guess = self.value($kind)?;
            visitor.$visit($value)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Tracer<'_> {
    type Error = Refused;

    fn is_human_readable(&self) -> bool {
        false
    }

    values! {
        deserialize_bool "bool" visit_bool |guess| guess == 1;
        deserialize_i8 "i8" visit_i8 |guess| NUMBERS[guess].cast_signed();
        deserialize_i16 "i16" visit_i16 |guess| NUMBERS[guess].into();
        deserialize_i32 "i32" visit_i32 |guess| NUMBERS[guess].into();
        deserialize_i64 "i64" visit_i64 |guess| NUMBERS[guess].into();
        deserialize_i128 "i128" visit_i128 |guess| NUMBERS[guess].into();
        deserialize_u8 "u8" visit_u8 |guess| NUMBERS[guess];
        deserialize_u16 "u16" visit_u16 |guess| NUMBERS[guess].into();
        deserialize_u32 "u32" visit_u32 |guess| NUMBERS[guess].into();
        deserialize_u64 "u64" visit_u64 |guess| NUMBERS[guess].into();
        deserialize_u128 "u128" visit_u128 |guess| NUMBERS[guess].into();
        deserialize_f32 "f32" visit_f32 |guess| NUMBERS[guess].into();
        deserialize_f64 "f64" visit_f64 |guess| NUMBERS[guess].into();
        deserialize_char "char" visit_char |guess| ['a', '0', 'A', ' ', '-', '/', 'z'][guess];
        deserialize_str "str" visit_str |guess| TEXTS[guess];
        deserialize_string "str" visit_string |guess| TEXTS[guess].to_owned();
        deserialize_bytes "[u8]" visit_bytes |guess| &[0; 64][..LENGTHS[guess]];
        deserialize_byte_buf "[u8]" visit_byte_buf |guess| vec![0; LENGTHS[guess]];
        deserialize_identifier "u32" visit_u32 |guess| NUMBERS[guess].into();
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        self.shape.push_str("any");
        Err(Refused)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.shape.push('?');
        match self.is_at_end() {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.shape.push_str("()");
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.within(name, |it, _| visitor.visit_newtype_struct(it))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.shape.push('[');
        let len = self.len();
        let value = visitor.visit_seq(Elements::new(self, len, &[]))?;
        self.shape.push(']');
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.elements(len, &[], visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.within(name, |it, _| it.elements(len, &[], visitor))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.shape.push('[');
        let len = self.len();
        let value = visitor.visit_map(Elements::new(self, len, &[]))?;
        self.shape.push(']');
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.within(name, |it, _| it.elements(fields.len(), fields, visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        // An enum within itself takes another variant, which may end the recursion.
        self.within(name, |it, outer| {
            let index = outer.min(variants.len().saturating_sub(1));
            it.value("|")?;
            it.shape
                .push_str(variants.get(index).copied().unwrap_or_default());
            let index = u32::try_from(index).unwrap_or(0);
            visitor.visit_enum(Variant(it, index))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;
    use std::time::Duration;

    use serde::{Deserialize, Serialize};

    use super::of;

    #[derive(Serialize, Deserialize)]
    struct Id(u64);

    #[derive(Serialize, Deserialize)]
    struct Point {
        x: i32,
        y: i32,
    }

    #[derive(Serialize, Deserialize)]
    enum Figure {
        Circle { at: Point, radius: u8 },
        Empty,
    }

    #[derive(Serialize, Deserialize)]
    struct Node {
        children: Vec<Node>,
        next: Option<Box<Node>>,
        sum: Sum,
    }

    #[derive(Serialize, Deserialize)]
    enum Sum {
        Of(Box<Sum>, Box<Sum>),
        Number(u8),
    }

    /// Takes 16 bytes alone, as identifiers do.
    #[derive(Serialize)]
    struct Sixteen;

    impl<'de> Deserialize<'de> for Sixteen {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Bytes;
            impl serde::de::Visitor<'_> for Bytes {
                type Value = Sixteen;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("16 bytes")
                }
                fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Sixteen, E> {
                    match bytes.len() {
                        16 => Ok(Sixteen),
                        len => Err(E::invalid_length(len, &self)),
                    }
                }
            }
            from.deserialize_bytes(Bytes)
        }
    }

    /// Takes nothing.
    struct Never;

    impl<'de> Deserialize<'de> for Never {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            u8::deserialize(from)?;
            Err(serde::de::Error::custom("never"))
        }
    }

    #[test]
    fn a_shape_is_what_the_codec_reads_with_the_names_of_fields() {
        assert_eq!(of::<()>(), "()");
        assert_eq!(of::<(u64, String)>(), "(u64,str)");
        assert_eq!(of::<Box<(usize, Box<str>)>>(), "(u64,str)");
        assert_eq!(of::<Id>(), "u64");
        assert_eq!(of::<Point>(), "{x:i32,y:i32}");
        assert_eq!(of::<Vec<Option<f32>>>(), "[?f32]");
        assert_eq!(of::<[u8; 16]>(), "(u8*16)");
        assert_eq!(of::<(u8, u8, u16, u16)>(), "(u8*2,u16*2)");
        assert_eq!(of::<((u8, u8), (u8, u8))>(), "((u8*2)*2)");
        assert_eq!(of::<Vec<u8>>(), of::<bytes::Bytes>());
        assert_eq!(of::<BTreeMap<String, char>>(), "[str:char]");
        assert_eq!(of::<Figure>(), "|Circle{at:{x:i32,y:i32},radius:u8}");
        assert_eq!(of::<Result<u8, String>>(), "|Ok u8");
        assert_eq!(of::<Duration>(), "{secs:u64,nanos:u32}");
    }

    #[test]
    fn a_type_that_contains_itself_has_a_shape() {
        let sum = "|Of(|Number u8*2)";
        let node = format!("{{children:[],next:?,sum:{sum}}}");
        let shape = format!("{{children:[{node}],next:?{node},sum:{sum}}}");
        assert_eq!(of::<Node>(), shape);
    }

    #[test]
    fn a_type_that_checks_its_values_is_given_others() {
        assert_eq!(of::<(Sixteen, NonZeroU16, String)>(), "([u8],u16,str)");
        assert_eq!(of::<(SocketAddr, u8)>(), "(|V4 ((u8*4),u16),u8)");
        assert_eq!(of::<(u32, Never, u64)>(), "(u32,u8!");
    }
}
