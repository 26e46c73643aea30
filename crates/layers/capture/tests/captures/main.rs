//! Captures of ports' frames: their files and their filters.

mod common;

mod capture;
mod filter;
mod recording;
mod tshark;
