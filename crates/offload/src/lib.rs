//! What an egress port lacks, in software: segmentation and checksums.

#![forbid(unsafe_code)]
