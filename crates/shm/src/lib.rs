//! The only crate that dereferences memory another domain can write.

#![forbid(unsafe_code)]
