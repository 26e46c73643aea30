//! The CPUs of server and client. The paper's server saturates its one CPU; its clients are on others.

use crate::error::Result;

/// The CPUs of the server and of the client.
#[derive(Clone, Debug)]
pub struct Cpus {
    /// The server's CPU; any if there is only one.
    pub server: Option<usize>,
    /// The client's CPU; any if there is only one.
    pub client: Option<usize>,
    /// What differs from the intended setup.
    pub note: Option<String>,
}

impl Cpus {
    /// Chooses two of the CPUs that this program may use.
    pub fn choose() -> Result<Self> {
        Ok(Self::among(&lab::cpus()?, lab::share_a_core))
    }

    /// The client gets the first, which serves most of the machine's interrupts.
    fn among(all: &[usize], share_a_core: impl Fn(usize, usize) -> bool) -> Self {
        let (client, others) = match all {
            [client, others @ ..] if !others.is_empty() => (*client, others),
            _ => {
                let note = "server and client share one CPU, so the client's work counts too";
                return Self { server: None, client: None, note: Some(note.to_owned()) };
            }
        };
        let apart = others.iter().find(|cpu| !share_a_core(client, **cpu));
        let note = apart.is_none().then(|| {
            "the server's CPU and the client's are threads of one core: they slow each other down"
                .to_owned()
        });
        Self { server: apart.or(others.first()).copied(), client: Some(client), note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[usize], cores: usize) -> (Option<usize>, Option<usize>, bool) {
        let cpus = Cpus::among(all, |one, other| one % cores == other % cores);
        (cpus.server, cpus.client, cpus.note.is_some())
    }

    #[test]
    fn server_and_client_get_separate_cores_if_there_are_two() {
        assert_eq!(chosen(&[0, 1], 2), (Some(1), Some(0), false));
        assert_eq!(chosen(&[2, 4, 5], 2), (Some(5), Some(2), false));
        assert_eq!(chosen(&[0, 1], 1), (Some(1), Some(0), true));
        assert_eq!(chosen(&[3], 1), (None, None, true));
    }
}
