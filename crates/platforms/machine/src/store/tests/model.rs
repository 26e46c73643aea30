//! The tree against a model that is obviously right: a map from path to value.

use std::collections::BTreeMap;

use hypervisor::DomId;
use proptest::prelude::*;
use xenstore::{Store, StoreError, TransactionId};

use super::super::StoreHub;

#[derive(Clone, Debug)]
enum Act {
    Write(String, String),
    Mkdir(String),
    Remove(String),
}

/// Paths and values; every parent of a path is there too.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Model(BTreeMap<String, String>);

impl Model {
    fn new() -> Self {
        Self(BTreeMap::from([(String::new(), String::new())]))
    }

    fn act(&mut self, act: &Act) -> Result<(), StoreError> {
        match act {
            Act::Write(path, value) => {
                self.make(path);
                self.0.insert(path.clone(), value.clone());
            }
            Act::Mkdir(path) => self.make(path),
            Act::Remove(path) => {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                if !self.0.contains_key(parent) {
                    return Err(StoreError::NotFound(path.clone()));
                }
                let below = format!("{path}/");
                self.0.retain(|key, _| key != path && !key.starts_with(&below));
            }
        }
        Ok(())
    }

    fn make(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            self.0.entry(path[..end].to_owned()).or_default();
        }
    }

    fn children(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let names = self.0.keys().filter_map(|key| key.strip_prefix(&below));
        names.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect()
    }
}

fn act_on(store: &impl Store, tx: Option<TransactionId>, act: &Act) -> Result<(), StoreError> {
    match act {
        Act::Write(path, value) => store.write(tx, path, value),
        Act::Mkdir(path) => store.mkdir(tx, path),
        Act::Remove(path) => store.remove(tx, path),
    }
}

/// Everything the store holds, found by walking it.
fn contents(store: &impl Store, tx: Option<TransactionId>) -> Model {
    let mut found = Model::new();
    let mut left = vec![String::new()];
    while let Some(path) = left.pop() {
        let at = if path.is_empty() { "/" } else { &path };
        for name in store.directory(tx, at).unwrap() {
            left.push(format!("{path}/{name}"));
        }
        found.0.insert(path.clone(), store.read(tx, at).unwrap());
    }
    found
}

fn act() -> impl Strategy<Value = Act> {
    // Few names, so that acts meet; one is a prefix of another.
    let path = || "(/(a|b|ab)){1,4}";
    prop_oneof![
        3 => (path(), "[xyz]{0,2}").prop_map(|(path, value)| Act::Write(path, value)),
        1 => path().prop_map(Act::Mkdir),
        2 => path().prop_map(Act::Remove),
    ]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    prop::collection::vec(act(), 0..12)
}

proptest! {
    #[test]
    fn a_tree_behaves_like_a_map_with_parents(acts in prop::collection::vec(act(), 0..40)) {
        let store = StoreHub::new().connect(DomId(0));
        let mut model = Model::new();
        for act in &acts {
            prop_assert_eq!(act_on(&store, None, act), model.act(act));
        }
        prop_assert_eq!(&contents(&store, None), &model);
        for path in model.0.keys().filter(|path| !path.is_empty()) {
            prop_assert_eq!(store.directory(None, path).unwrap(), model.children(path));
        }
    }

    /// A transaction sees the start and its own acts, and a commit is all or nothing.
    #[test]
    fn a_transaction_happens_at_one_moment(before in acts(), inside in acts(), outside in acts()) {
        let store = StoreHub::new().connect(DomId(0));
        let mut model = Model::new();
        for act in &before {
            prop_assert_eq!(act_on(&store, None, act), model.act(act));
        }
        let mut private = model.clone();
        let tx = store.begin().unwrap();
        for act in &outside {
            prop_assert_eq!(act_on(&store, None, act), model.act(act));
        }
        let mut done = Vec::new();
        for act in &inside {
            let result = act_on(&store, Some(tx), act);
            prop_assert_eq!(&result, &private.act(act));
            done.extend(result.is_ok().then_some(act));
        }
        match store.end(tx, true) {
            Ok(()) => {
                // As if all accepted acts had happened at the end.
                for act in done {
                    prop_assert_eq!(model.act(act), Ok(()));
                }
            }
            Err(error) => prop_assert_eq!(error, StoreError::Conflict),
        }
        prop_assert_eq!(contents(&store, None), model);
    }

    #[test]
    fn an_undisturbed_transaction_commits(before in acts(), inside in acts()) {
        let store = StoreHub::new().connect(DomId(0));
        for act in &before {
            let _ = act_on(&store, None, act);
        }
        let tx = store.begin().unwrap();
        for act in &inside {
            let _ = act_on(&store, Some(tx), act);
        }
        let private = contents(&store, Some(tx));
        prop_assert_eq!(store.end(tx, true), Ok(()));
        prop_assert_eq!(contents(&store, None), private);
    }
}
