//! Decodes with work and memory that are bounded by the length of the body, not by the lengths that
//! the body claims.
//!
//! postcard trusts lengths: it decodes an element that takes no bytes as often as the body claims,
//! and it decodes nested values by recursion. So this decoder decodes and counts all values that
//! contain others, and postcard reads only the plain values.

use ::postcard::de_flavors::Slice;
use ::postcard::{Deserializer as Reader, Error, Result};
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};

use crate::limits::{
    ELEMENT_MEMORY_PER_BYTE, ELEMENT_MEMORY_SPARE, ELEMENTS_WITHOUT_BYTES_MAX, NESTING_MAX,
};

/// Decodes a value from the whole body.
///
/// # Errors
/// The reason as text: the body is not such a value, or exceeds a limit.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> std::result::Result<T, String> {
    let mut decoder = Decoder {
        rest: body,
        nesting_left: NESTING_MAX,
        empty_left: ELEMENTS_WITHOUT_BYTES_MAX,
        memory_left: body.len().saturating_mul(ELEMENT_MEMORY_PER_BYTE) + ELEMENT_MEMORY_SPARE,
        exceeded: None,
    };
    match (T::deserialize(&mut decoder), decoder.rest) {
        (Ok(value), []) => Ok(value),
        (Ok(_), rest) => Err(format!("{} bytes too many", rest.len())),
        (Err(error), _) => Err(match decoder.exceeded {
            Some(limit) => limit.to_owned(),
            None => error.to_string(),
        }),
    }
}

struct Decoder<'de> {
    rest: &'de [u8],
    nesting_left: usize,
    /// Number of elements without bytes that may still be decoded.
    empty_left: usize,
    /// Bytes of memory that decoded elements may still take.
    memory_left: usize,
    /// The limit that ended the decoding, since postcard's errors have no text.
    exceeded: Option<&'static str>,
}

impl<'de> Decoder<'de> {
    /// Makes postcard read a value that contains no other values.
    fn read<R>(
        &mut self,
        read: impl FnOnce(&mut Reader<'de, Slice<'de>>) -> Result<R>,
    ) -> Result<R> {
        let mut reader = Reader::from_bytes(self.rest);
        let value = read(&mut reader)?;
        self.rest = reader.finalize()?;
        Ok(value)
    }

    fn exceed<R>(&mut self, limit: &'static str) -> Result<R> {
        self.exceeded = Some(limit);
        Err(Error::SerdeDeCustom)
    }

    fn nested<R>(&mut self, decode: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.nesting_left == 0 {
            return self.exceed("values nested more than 128 deep");
        }
        self.nesting_left -= 1;
        let value = decode(self)?;
        self.nesting_left += 1;
        Ok(value)
    }

    /// Reads the number of the elements that follow. It may exceed the remaining bytes only by the
    /// number of elements without bytes that are still allowed.
    fn read_len(&mut self) -> Result<usize> {
        let len = self.read(|reader| usize::deserialize(reader))?;
        match len <= self.rest.len().saturating_add(self.empty_left) {
            true => Ok(len),
            false => self.exceed("more elements than the bytes that follow"),
        }
    }

    /// Decodes an element of a sequence, or a key or value of a map.
    fn element<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        match self.memory_left.checked_sub(size_of::<S::Value>()) {
            Some(left) => self.memory_left = left,
            None => return self.exceed("elements of too much memory for the length of the body"),
        }
        seed.deserialize(self)
    }

    /// Ends an element; `rest` bytes were left before it.
    fn end_element(&mut self, rest: usize) -> Result<()> {
        if self.rest.len() == rest {
            match self.empty_left.checked_sub(1) {
                Some(left) => self.empty_left = left,
                None => return self.exceed("more than 1,024 elements without bytes"),
            }
        }
        Ok(())
    }
}

/// Decodes values that contain no other values.
macro_rules! plain {
    ($($name:ident)*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            self.read(|reader| de::Deserializer::$name(reader, visitor))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = Error;

    plain! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32
        deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_identifier deserialize_ignored_any
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.read(|reader| u8::deserialize(reader))? {
            0 => visitor.visit_none(),
            1 => self.nested(|this| visitor.visit_some(this)),
            _ => Err(Error::DeserializeBadOption),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        self.nested(|this| visitor.visit_newtype_struct(this))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = self.read_len()?;
        self.nested(|decoder| visitor.visit_seq(Elements::new(decoder, left)))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.nested(|decoder| visitor.visit_seq(Fields { decoder, left: len }))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = self.read_len()?;
        self.nested(|decoder| visitor.visit_map(Elements::new(decoder, left)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.nested(|this| visitor.visit_enum(this))
    }
}

/// The fields of a tuple or struct: as many as the type has.
struct Fields<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Fields<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The elements of a sequence or map: as many as the body claims.
struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
    /// Bytes that were left before the last key.
    rest: usize,
}

impl<'a, 'de> Elements<'a, 'de> {
    fn new(decoder: &'a mut Decoder<'de>, left: usize) -> Self {
        Elements {
            decoder,
            left,
            rest: 0,
        }
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let element = self.next_key_seed(seed)?;
        if element.is_some() {
            self.decoder.end_element(self.rest)?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        (self.left, self.rest) = (left, self.decoder.rest.len());
        self.decoder.element(seed).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        let value = self.decoder.element(seed)?;
        self.decoder.end_element(self.rest)?;
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> EnumAccess<'de> for &mut Decoder<'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let variant = self.read(|reader| u32::deserialize(reader))?;
        let variant = seed.deserialize(variant.into_deserializer())?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Decoder<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::{DeserializeOwned, ELEMENTS_WITHOUT_BYTES_MAX, NESTING_MAX, decode};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Choice {
        Unit,
        One(Box<Choice>),
        Two(i16, Option<char>),
        Named { wide: u128, small: i8 },
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Pair(f32, f64);

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapped(u64);

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Mixed {
        flag: bool,
        numbers: (u8, u16, u32, i32, i64, i128),
        text: String,
        choices: Vec<Choice>,
        map: BTreeMap<String, Vec<Option<Wrapped>>>,
        pair: Pair,
        unit: (),
        array: [u8; 3],
    }

    fn choice() -> impl Strategy<Value = Choice> {
        let leaf = prop_oneof![
            Just(Choice::Unit),
            any::<(i16, Option<char>)>().prop_map(|(one, other)| Choice::Two(one, other)),
            any::<(u128, i8)>().prop_map(|(wide, small)| Choice::Named { wide, small }),
        ];
        leaf.prop_recursive(4, 8, 1, |inner| inner.prop_map(|it| Choice::One(it.into())))
    }

    fn mixed() -> impl Strategy<Value = Mixed> {
        let map = prop::collection::btree_map(
            any::<String>(),
            prop::collection::vec(any::<Option<u64>>(), 0..4),
            0..4,
        );
        let choices = prop::collection::vec(choice(), 0..5);
        let plain = any::<(bool, (u8, u16, u32, i32, i64, i128), String, [u8; 3])>();
        (plain, choices, map, any::<(i16, i32)>()).prop_map(|(plain, choices, map, pair)| Mixed {
            flag: plain.0,
            numbers: plain.1,
            text: plain.2,
            choices,
            map: map
                .into_iter()
                .map(|(name, all)| (name, all.into_iter().map(|it| it.map(Wrapped)).collect()))
                .collect(),
            pair: Pair(pair.0.into(), pair.1.into()),
            unit: (),
            array: plain.3,
        })
    }

    proptest! {
        /// Bodies that are complete, cut off, too long or damaged.
        #[test]
        fn bodies_are_decoded_as_postcard_decodes_them(
            value in mixed(),
            cut in any::<prop::sample::Index>(),
            damage in any::<u8>(),
        ) {
            let whole = ::postcard::to_stdvec(&value).unwrap();
            prop_assert_eq!(decode::<Mixed>(&whole), Ok(value));
            let mut damaged = whole.clone();
            let at = cut.index(damaged.len());
            damaged[at] = damage;
            for body in [&whole[..at], &damaged, &[&whole[..], &[0]].concat()] {
                let plain = match ::postcard::take_from_bytes::<Mixed>(body) {
                    Ok((value, [])) => Some(value),
                    _ => None,
                };
                let bounded = decode::<Mixed>(body).ok();
                // Only the limits differ: this decoder trusts no length. Compared as text, since a
                // damaged number may be NaN, which equals nothing.
                prop_assert_eq!(format!("{plain:?}"), format!("{bounded:?}"));
            }
        }
    }

    fn refusal<T: DeserializeOwned + std::fmt::Debug>(body: &[u8]) -> String {
        decode::<T>(body).expect_err("it is refused")
    }

    #[test]
    fn elements_are_bounded_by_the_bytes_that_are_left() {
        let claim = |len: u64| ::postcard::to_stdvec(&len).unwrap();
        let empty = ELEMENTS_WITHOUT_BYTES_MAX as u64;
        assert_eq!(
            decode::<Vec<()>>(&claim(empty)).map(|it| it.len()),
            Ok(1024)
        );
        for len in [empty + 1, 1 << 32, u64::MAX] {
            assert!(
                refusal::<Vec<()>>(&claim(len)).contains("more elements"),
                "{len}"
            );
            assert!(
                refusal::<Vec<u8>>(&claim(len)).contains("more elements"),
                "{len}"
            );
        }
        // The limit is for all collections of a body together: the bytes would allow 2,000 lists of
        // 2,000.
        let lists = vec![vec![(); 2000]; 2000];
        let body = ::postcard::to_stdvec(&lists).unwrap();
        assert!(refusal::<Vec<Vec<()>>>(&body).contains("without bytes"));
        // Each key has bytes, even if its value has none.
        let map: BTreeMap<u32, ()> = (0..5000).map(|it| (it, ())).collect();
        let body = ::postcard::to_stdvec(&map).unwrap();
        assert_eq!(decode::<BTreeMap<u32, ()>>(&body), Ok(map));
    }

    #[test]
    fn the_memory_of_elements_is_bounded_by_the_length_of_the_body() {
        let absent = |count: usize| ::postcard::to_stdvec(&vec![None::<[u64; 32]>; count]).unwrap();
        type Large = Vec<Option<[u64; 32]>>;
        assert_eq!(decode::<Large>(&absent(2000)).map(|it| it.len()), Ok(2000));
        assert!(refusal::<Large>(&absent(100_000)).contains("too much memory"));
        let empty = vec![String::new(); 1_000_000];
        let body = ::postcard::to_stdvec(&empty).unwrap();
        assert_eq!(decode::<Vec<String>>(&body), Ok(empty));
    }

    #[test]
    fn values_are_nested_so_deep_and_no_deeper() {
        let nested = |depth: usize| {
            let mut body = vec![1; depth - 1];
            body.push(0);
            body
        };
        assert!(decode::<Choice>(&nested(NESTING_MAX)).is_ok());
        for depth in [NESTING_MAX + 1, 1 << 20] {
            assert!(
                refusal::<Choice>(&nested(depth)).contains("nested"),
                "{depth}"
            );
        }
    }
}
