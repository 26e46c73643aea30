//! Workers that carry frames between ports.

#![forbid(unsafe_code)]
