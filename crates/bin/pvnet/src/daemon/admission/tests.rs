//! Who is admitted, and what a refusal says.

use super::*;

use host::TempDir;
use wire::netif::header_channel;

const SECRET: &str = "correct horse battery staple";

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(TempDir::new().unwrap());
        folder.write("red", SECRET, 0o600);
        folder
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Guests of which `red` has a token, `blue` a user, and `green` neither.
    fn settings(&self) -> Result<AdmissionSettings, Error> {
        let guest = |n: u8, name: &str, more: String| {
            format!("[[guest]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{n}\"\n{more}\n")
        };
        let file = self.0.path().join("red");
        let text = guest(1, "red", format!("token_file = \"{}\"", file.display()))
            + &guest(2, "blue", "uid = 1000".to_owned())
            + &guest(3, "green", String::new());
        AdmissionSettings::new(&Config::parse(&text).unwrap())
    }

    fn token(&self, text: &str) -> Token {
        self.write("shown", text, 0o600);
        Token::read(&self.0.path().join("shown")).unwrap()
    }
}

fn admission(settings: &AdmissionSettings) -> Admission {
    let machine = machine::Machine::new();
    let store = machine.store().connect(DomId(0));
    let nics = Nics::new(&Config::parse("").unwrap(), &machine);
    let limits = Arc::new(Limits::of_this_process());
    let guests = GuestList::new(settings.clone());
    Admission::new(&guests, Arc::new(store), nics, limits, mpsc::channel().0)
}

fn applicant(name: &str, token: Option<Token>, user: u32) -> Applicant {
    Applicant { name: name.to_owned(), token, process: 77, user }
}

#[test]
fn a_guest_with_a_token_or_a_user_is_nobody_elses() {
    let folder = Folder::new();
    let settings = folder.settings().unwrap();
    let right = || Some(folder.token(SECRET));
    let wrong = || Some(folder.token("correct horse battery stapl3"));
    for (applicant, refusal) in [
        (applicant("red", right(), 5), None),
        (applicant("red", None, 0), Some("--token-file")),
        (applicant("red", wrong(), 0), Some("not that of guest")),
        (applicant("blue", None, 1000), None),
        (applicant("blue", right(), 1001), Some("another user than 1001")),
        (applicant("blue", None, 0), Some("another user than 0")),
        (applicant("green", wrong(), 0), None),
        (applicant("mallory", None, 0), Some("there are: blue, green, red")),
    ] {
        match (settings.identify(&applicant), refusal) {
            (Ok(guest), None) => assert_eq!(guest.name, applicant.name),
            (Err(why), Some(part)) => {
                assert!(why.contains(part), "{why}");
                assert!(!why.contains("horse"), "{why}");
            }
            (result, _) => panic!("{applicant:?}: {result:?}"),
        }
    }
}

#[test]
fn a_name_in_use_is_refused_until_its_guest_has_gone() {
    let folder = Folder::new();
    let admission = admission(&folder.settings().unwrap());
    let first = admission.admit(&applicant("green", None, 0)).unwrap();
    let why = admission.admit(&applicant("green", None, 0)).err().unwrap();
    assert!(why.contains("joined already") && why.contains("process 77"), "{why}");
    // The domain need not have been created.
    drop(first);
    assert!(admission.admit(&applicant("green", None, 0)).is_ok());
}

#[test]
fn a_token_that_everybody_can_read_is_refused() {
    let folder = Folder::new();
    for (text, mode, part) in
        [(SECRET, 0o644, "chmod"), ("short", 0o600, "16 to 256 bytes"), (SECRET, 0o640, "")]
    {
        folder.write("red", text, mode);
        match folder.settings() {
            Ok(_) => assert_eq!(part, ""),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(part) && error.contains("red: "), "{error}");
            }
        }
    }
}

#[test]
fn a_guest_that_joins_in_a_loop_is_slowed_down_alone() {
    let folder = Folder::new();
    let admission = admission(&folder.settings().unwrap());
    let why = (0..1000).find_map(|_| admission.admit(&applicant("green", None, 0)).err());
    assert!(why.unwrap().contains("joins too often"));
    assert!(admission.admit(&applicant("red", Some(folder.token(SECRET)), 0)).is_ok());
}

#[test]
fn a_guest_has_grants_for_all_its_queues() {
    let guest = |queues: &[u32]| {
        let vif = |queues: &u32| Vif { queues: Some(*queues), ..Vif::default() };
        Guest { vifs: queues.iter().map(vif).collect(), ..Guest::default() }
    };
    let grant_pages = |queues: &[u32]| memory_size(&guest(queues), 1, false).grant_pages;
    assert_eq!(grant_pages(&[1]), MemorySize::default().grant_pages);
    assert_eq!(grant_pages(&[8]), MemorySize::default().grant_pages);
    assert_eq!(grant_pages(&[8, 4]), 24);
    // A page has 512 references of 8 bytes. A queue grants two rings, a page for each of their slots, and
    // the header channel; a vif also grants a control ring and its list.
    const { assert!(GRANT_PAGES * 512 >= 2 * (netfront::RING_LEN + 1) + header_channel::PAGES + 2) };
}
