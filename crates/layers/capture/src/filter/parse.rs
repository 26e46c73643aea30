//! From text to a filter, by recursive descent.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use wire::ethernet::MacAddr;
use wire::headers::{Network, Transport};

use super::expression::{End, Expression, Operator, Primitive, Subnet, VLAN_ID_MASK};
use crate::filter::Direction;

/// How deep parentheses may nest: each level takes space on the stack.
const DEPTH_MAX: usize = 32;

const PRIMITIVES: &str = "ether, host, net, port, portrange, src, dst, tcp, udp, icmp, icmp6, \
                          arp, ip, ip6, vlan, less, greater, dropped, inbound, outbound, not or (";
const QUALIFIED: &str = "host, net, port or portrange";
const MAC: &str = "a MAC address such as 00:16:3e:00:00:01";
const ADDRESS: &str = "an IPv4 or IPv6 address";
const CIDR: &str = "a network such as 10.0.0.0/8, with no address bit set behind the prefix";
const PORT: &str = "a port from 0 to 65535";
const PORT_RANGE: &str = "a range of ports such as 6000-6008";
const VLAN_ID: &str = "a VLAN identifier from 0 to 4095";
const LENGTH: &str = "a length in bytes";

/// Why a text is not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter, character {position}: found {found}, expected {expected}")]
pub struct FilterError {
    /// Where, in characters; the first is 1.
    pub position: usize,
    /// What is there, in words.
    pub found: String,
    /// What is understood there, in words.
    pub expected: &'static str,
}

/// Parses a whole text.
pub(crate) fn parse(text: &str) -> Result<Expression, FilterError> {
    let mut parser = Parser { text, tokens: tokens(text), next: 0, depth: 0 };
    if parser.peek() == Kind::End {
        return Ok(Expression::Everything);
    }
    let expression = parser.chain()?;
    match parser.peek() {
        Kind::End => Ok(expression),
        _ => Err(parser.unexpected("and, or, or the end")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    Open,
    Close,
    Not,
    And,
    Or,
    Word(&'a str),
    End,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind<'a>,
    /// Where it starts in the text, in bytes.
    offset: usize,
}

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("`(`"),
            Self::Close => f.write_str("`)`"),
            Self::Not => f.write_str("`not`"),
            Self::And => f.write_str("`and`"),
            Self::Or => f.write_str("`or`"),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::End => f.write_str("the end"),
        }
    }
}

/// The text's tokens; the last is [`Kind::End`].
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let offset = text.len() - rest.len();
        let (kind, after) = token(rest);
        tokens.push(Token { kind, offset });
        if kind == Kind::End {
            return tokens;
        }
        rest = after;
    }
}

/// The token that `text` starts with, and what follows it.
fn token(text: &str) -> (Kind<'_>, &str) {
    const SYMBOLS: [(&str, Kind<'static>); 5] = [
        ("(", Kind::Open),
        (")", Kind::Close),
        ("!", Kind::Not),
        ("&&", Kind::And),
        ("||", Kind::Or),
    ];
    for (symbol, kind) in SYMBOLS {
        if let Some(after) = text.strip_prefix(symbol) {
            return (kind, after);
        }
    }
    let ends = |c: char| c.is_whitespace() || "()!&|".contains(c);
    // A lone `&` or `|` is a word, which nothing expects.
    let first = text.chars().next().map_or(0, char::len_utf8);
    let len = text[first..].find(ends).map_or(text.len(), |at| first + at);
    let (word, after) = text.split_at(len);
    let kind = match word {
        "" => Kind::End,
        "not" => Kind::Not,
        "and" => Kind::And,
        "or" => Kind::Or,
        word => Kind::Word(word),
    };
    (kind, after)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    /// Parentheses that are open.
    depth: usize,
}

impl<'a> Parser<'a> {
    /// `chain = term { ("and" | "or") term }`
    fn chain(&mut self) -> Result<Expression, FilterError> {
        let first = self.term()?;
        let mut rest = Vec::new();
        loop {
            let operator = match self.peek() {
                Kind::And => Operator::And,
                Kind::Or => Operator::Or,
                _ if rest.is_empty() => return Ok(first),
                _ => return Ok(Expression::Chain { first: Box::new(first), rest }),
            };
            self.advance();
            rest.push((operator, self.term()?));
        }
    }

    /// `term = { "not" } ( "(" chain ")" | primitive )`
    fn term(&mut self) -> Result<Expression, FilterError> {
        let mut negated = false;
        while self.peek() == Kind::Not {
            self.advance();
            negated = !negated;
        }
        let inner = match self.peek() {
            Kind::Open => self.parenthesised()?,
            _ => self.primitive()?,
        };
        Ok(if negated { Expression::Not(Box::new(inner)) } else { inner })
    }

    fn parenthesised(&mut self) -> Result<Expression, FilterError> {
        if self.depth == DEPTH_MAX {
            return Err(self.unexpected("at most 32 parentheses within each other"));
        }
        self.advance();
        self.depth += 1;
        let inner = self.chain()?;
        if self.peek() != Kind::Close {
            return Err(self.unexpected("and, or, or )"));
        }
        self.advance();
        self.depth -= 1;
        Ok(inner)
    }

    fn primitive(&mut self) -> Result<Expression, FilterError> {
        let Kind::Word(word) = self.peek() else { return Err(self.unexpected(PRIMITIVES)) };
        let primitive = match word {
            "src" | "dst" | "host" | "net" | "port" | "portrange" => self.qualified()?,
            "ether" => self.ether()?,
            "tcp" => return self.protocol(Primitive::Transport(Transport::Tcp)),
            "udp" => return self.protocol(Primitive::Transport(Transport::Udp)),
            "ip" => return self.protocol(Primitive::Network(Network::Ipv4)),
            "ip6" => return self.protocol(Primitive::Network(Network::Ipv6)),
            "arp" => return self.protocol(Primitive::Network(Network::Arp)),
            "icmp" => self.plain(Primitive::Transport(Transport::Icmp)),
            "icmp6" => self.plain(Primitive::Transport(Transport::Icmpv6)),
            "dropped" => self.plain(Primitive::Dropped),
            "inbound" => self.plain(Primitive::Direction(Direction::Inbound)),
            "outbound" => self.plain(Primitive::Direction(Direction::Outbound)),
            "vlan" => {
                self.advance();
                let named = matches!(self.peek(), Kind::Word(_));
                Primitive::Vlan(if named { Some(self.value(VLAN_ID, vlan_id)?) } else { None })
            }
            "less" => {
                self.advance();
                Primitive::Less(self.value(LENGTH, from_str)?)
            }
            "greater" => {
                self.advance();
                Primitive::Greater(self.value(LENGTH, from_str)?)
            }
            _ => return Err(self.unexpected(PRIMITIVES)),
        };
        Ok(Expression::Primitive(primitive))
    }

    /// A primitive of one word, which is next.
    fn plain(&mut self, primitive: Primitive) -> Primitive {
        self.advance();
        primitive
    }

    /// Reads a protocol's name, and the primitive that the protocol qualifies, if there is one.
    fn protocol(&mut self, protocol: Primitive) -> Result<Expression, FilterError> {
        self.advance();
        let mut word = self.peek();
        if matches!(word, Kind::Word("src" | "dst")) {
            word = self.tokens.get(self.next + 1).map_or(Kind::End, |token| token.kind);
        }
        let qualifies = match protocol {
            Primitive::Transport(_) => matches!(word, Kind::Word("port" | "portrange")),
            _ => matches!(word, Kind::Word("host" | "net")),
        };
        let protocol = Expression::Primitive(protocol);
        if !qualifies {
            return Ok(protocol);
        }
        let qualified = Expression::Primitive(self.qualified()?);
        Ok(Expression::Chain { first: Box::new(protocol), rest: vec![(Operator::And, qualified)] })
    }

    /// `qualified = ["src" | "dst"] ("host" | "net" | "port" | "portrange") VALUE`
    fn qualified(&mut self) -> Result<Primitive, FilterError> {
        let end = match self.peek() {
            Kind::Word("src") => End::Source,
            Kind::Word("dst") => End::Destination,
            _ => End::Either,
        };
        if end != End::Either {
            self.advance();
        }
        let Kind::Word(word @ ("host" | "net" | "port" | "portrange")) = self.peek() else {
            return Err(self.unexpected(QUALIFIED));
        };
        self.advance();
        Ok(match word {
            "host" => Primitive::Address(end, Subnet::host(self.value(ADDRESS, from_str)?)),
            "net" => Primitive::Address(end, self.value(CIDR, subnet)?),
            "port" => {
                let port = self.value(PORT, from_str)?;
                Primitive::Port(end, port..=port)
            }
            _ => {
                let (first, last) = self.value(PORT_RANGE, port_range)?;
                Primitive::Port(end, first..=last)
            }
        })
    }

    /// `ether ("host" | "src" | "dst") MAC`
    fn ether(&mut self) -> Result<Primitive, FilterError> {
        self.advance();
        let end = match self.peek() {
            Kind::Word("host") => End::Either,
            Kind::Word("src") => End::Source,
            Kind::Word("dst") => End::Destination,
            _ => return Err(self.unexpected("host, src or dst")),
        };
        self.advance();
        Ok(Primitive::Ether(end, self.value::<MacAddr>(MAC, from_str)?))
    }

    /// Reads the next word as a value.
    fn value<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FilterError> {
        let value = match self.peek() {
            Kind::Word(word) => read(word),
            _ => None,
        };
        let value = value.ok_or_else(|| self.unexpected(expected))?;
        self.advance();
        Ok(value)
    }

    fn peek(&self) -> Kind<'a> {
        self.tokens[self.next].kind
    }

    /// Goes on to the next token. The last one stays.
    fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    fn unexpected(&self, expected: &'static str) -> FilterError {
        let Token { kind, offset } = self.tokens[self.next];
        let position = 1 + self.text[..offset].chars().count();
        FilterError { position, found: kind.to_string(), expected }
    }
}

fn from_str<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

fn vlan_id(word: &str) -> Option<u16> {
    from_str(word).filter(|id| *id <= VLAN_ID_MASK)
}

fn subnet(word: &str) -> Option<Subnet> {
    let (address, prefix) = word.split_once('/')?;
    Subnet::new(from_str::<IpAddr>(address)?, from_str(prefix)?)
}

fn port_range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-')?;
    let range = (from_str(first)?, from_str(last)?);
    (range.0 <= range.1).then_some(range)
}
