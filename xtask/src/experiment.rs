//! One experiment: its description, and the folder that it lives in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::claim::{Figure, Goal};

/// `experiment.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    /// The heading of its page.
    pub(crate) title: String,
    /// The publication, and the figure or table in it.
    pub(crate) source: String,
    /// The question.
    pub(crate) question: String,
    /// How the published figures were made, and in what ours differ.
    pub(crate) method: String,
    /// The command, words apart by spaces, but for those between double quotes; `{result}` stands
    /// for the file that the report goes to. It begins with `vlane-lab`.
    pub(crate) command: Option<String>,
    /// Takes the report of another experiment instead of a run of its own.
    pub(crate) uses: Option<String>,
    /// Features that vlane is built with for it.
    #[serde(default)]
    pub(crate) features: Vec<String>,
    /// How long it takes, in minutes.
    #[serde(default)]
    pub(crate) minutes: f64,
    /// Sections of the report that belong to it; all if there are none.
    #[serde(default)]
    pub(crate) sections: Vec<String>,
    /// Sections whose tables stand on the page.
    #[serde(default)]
    pub(crate) tables: Vec<String>,
    /// The published numbers, also those that contradict each other.
    #[serde(default, rename = "figure")]
    pub(crate) figures: Vec<Figure>,
    /// vlane's own goals, which are no published figures.
    #[serde(default, rename = "goal")]
    pub(crate) goals: Vec<Goal>,
    /// Results that agree with the publication, those that do not, and why.
    #[serde(default)]
    pub(crate) discussion: String,
}

/// A folder of `experiments/`.
#[derive(Debug)]
pub(crate) struct Experiment {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) about: Description,
}

impl Experiment {
    /// Reads one.
    fn read(folder: PathBuf) -> Result<Self> {
        let file = folder.join("experiment.toml");
        let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let about: Description =
            toml::from_str(&text).with_context(|| format!("{}", file.display()))?;
        if about.command.is_some() == about.uses.is_some() {
            bail!("{}: give either `command` or `uses`", file.display());
        }
        let figures = about.figures.iter().map(|figure| (&figure.says, figure.fault()));
        let goals = about.goals.iter().map(|goal| (&goal.says, goal.fault()));
        if let Some((says, fault)) =
            figures.chain(goals).find_map(|(says, fault)| Some((says, fault?)))
        {
            bail!("{}: `{says}`: {fault}", file.display());
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, folder, about })
    }

    /// All of them, by name.
    pub(crate) fn all(root: &Path) -> Result<Vec<Self>> {
        let folder = root.join("experiments");
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))?;
        let mut folders: Vec<_> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.join("experiment.toml").is_file())
            .collect();
        folders.sort();
        let all = folders.into_iter().map(Self::read).collect::<Result<Vec<_>>>()?;
        for one in &all {
            if let Some(used) = &one.about.uses
                && !all.iter().any(|other| other.name == *used && other.about.command.is_some())
            {
                bail!(
                    "{}: uses `{used}`, which is not there or has no command of its own",
                    one.name
                );
            }
        }
        Ok(all)
    }

    /// The folder that its report is in.
    pub(crate) fn source_of_result<'a>(&'a self, all: &'a [Self]) -> &'a Path {
        let used =
            self.about.uses.as_ref().and_then(|used| all.iter().find(|other| other.name == *used));
        &used.unwrap_or(self).folder
    }
}
