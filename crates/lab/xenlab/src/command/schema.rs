//! What the JSON of each lab looks like.

use document::Kind;

use super::hostile::HostileDocument;
use super::matrix::MatrixDocument;
use super::queues::QueuesDocument;
use crate::scenario::StepsDocument;

/// What these commands, and the other labs, write with `--json`.
pub const DOCUMENTS: &[Kind] = &[
    Kind::of::<StepsDocument<'_>>(
        "steps",
        &[
            "xen domains",
            "xen guest-copy",
            "xen device",
            "xen clients",
            "xen platform",
            "qemu",
            "ovn",
        ],
    ),
    Kind::of::<MatrixDocument<'_>>("matrix", &["xen matrix"]),
    Kind::of::<QueuesDocument<'_>>("queues", &["xen queues"]),
    Kind::of::<HostileDocument<'_>>("hostile", &["xen hostile"]),
];
