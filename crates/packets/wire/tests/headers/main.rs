//! Headers as etherparse writes and reads them, and views of any bytes.

mod oracle;
mod views;
