//! `Debug` for types that show some of their fields, or values computed from them.

/// Implements `Debug` as the derive does, with these names and values, and marks the output as
/// incomplete. The bounds of a generic type are given before it, in brackets.
macro_rules! debug_fields {
    (
        $([$($bounds:tt)*])? $name:ident $(<$($argument:ty),+>)?, $this:ident =>
        $($field:ident: $value:expr),+
    ) => {
        impl $(<$($bounds)*>)? ::std::fmt::Debug for $name $(<$($argument),+>)? {
            fn fmt(&$this, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &$value))+
                    .finish_non_exhaustive()
            }
        }
    };
}
