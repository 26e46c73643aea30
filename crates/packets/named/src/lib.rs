//! Enums whose members are listed and have names: each member is written once.

#![forbid(unsafe_code)]

/// Declares an enum with `ALL`, its members in their order.
#[macro_export]
macro_rules! each {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$of_member:meta])* $member:ident $(= $number:literal)?),* $(,)?
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$of_member])* $member $(= $number)?,)*
        }

        impl $name {
            /// All of them, in their order.
            pub const ALL: [Self; [$(Self::$member),*].len()] = [$(Self::$member),*];
        }
    };
}

/// The same with `name`: what follows `=>`.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$of_member:meta])* $member:ident => $text:literal),* $(,)?
    }) => {
        $crate::each! {
            $(#[$meta])*
            $vis enum $name {
                $($(#[$of_member])* $member,)*
            }
        }

        impl $name {
            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$member => $text,)*
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    named! {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Fruit {
            /// From a tree.
            Apple => "apple",
            Melon => "water melon",
        }
    }

    #[test]
    fn members_are_listed_in_their_order_with_their_names() {
        assert_eq!(Fruit::ALL, [Fruit::Apple, Fruit::Melon]);
        assert_eq!(Fruit::ALL.map(Fruit::name), ["apple", "water melon"]);
    }
}
