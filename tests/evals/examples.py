"""Invented rows of every benchmark: as the hub's data set has them, and as ready-made prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = " \n = The mill = \n \n The mill was built in 1 @,@ 840 by a well @-@ known miller . \n"
PAGE_SCORED = "\n= The mill =\n\nThe mill was built in 1,840 by a well-known miller.\n"

HUB: dict[str, list[dict[str, Any]]] = {
    "wikitext": [{"page": PAGE}, {"page": "A second page, already plain.\n\nIts end"}],
    "lambada": [
        {"text": "She wrote to her sister every week, and a letter came from her sister"},
        {"text": "He left the boat at the pier and walked away from the boat"},
    ],
    "piqa": [
        {
            "goal": "dry a wet boot",
            "sol1": "Fill it with rags.",
            "sol2": "Fill it up.",
            "label": 0,
        },
        {"goal": "cool soup", "sol1": "Heat it.", "sol2": "Stir it by a window.", "label": 1},
    ],
    "arc_easy": [
        {
            "id": "a",
            "question": "What melts ice?",
            "choices": {"text": ["heat", "cold", "dark", "noise"], "label": ["A", "B", "C", "D"]},
            "answerKey": "A",
        },
        {
            "id": "b",
            "question": "Which of these flies?",
            "choices": {"text": ["a stone", "a wren", "a root"], "label": ["1", "2", "3"]},
            "answerKey": "2",
        },
    ],
    "hellaswag": [
        {
            "ind": 1,
            "activity_label": "Baking bread",
            "ctx_a": "A baker kneads dough on a table.",
            "ctx_b": "the baker",
            "ctx": "A baker kneads dough on a table. the baker",
            "endings": ["shapes a loaf.", "sails away.", "paints the dough blue.", "sings to it."],
            "label": "0",
        },
        {
            "ind": 2,
            "activity_label": "Mowing the lawn",
            "ctx_a": "A man starts a mower [title] How to mow",
            "ctx_b": "",
            "ctx": "A man starts a mower [title] How to mow",
            "endings": ["He eats.", "He sleeps [substeps] well.", "He mows.", "He flies."],
            "label": "2",
        },
        {
            "ind": 3,
            "activity_label": "Rowing",
            "ctx_a": "Two girls sit in a boat.",
            "ctx_b": "they",
            "ctx": "Two girls sit in a boat. they",
            "endings": ["drive.", "row to the shore.", "cook rice.", "climb."],
            "label": "1",
        },
        {
            "ind": 4,
            "activity_label": "Shoe shining",
            "ctx_a": "A boy opens a tin.",
            "ctx_b": "he",
            "ctx": "A boy opens a tin. he",
            "endings": ["runs.", "reads.", "weeps.", "rubs the shoe with a cloth."],
            "label": "3",
        },
        {
            "ind": 5,
            "activity_label": "Kite flying",
            "ctx_a": "The wind is strong.",
            "ctx_b": "a child",
            "ctx": "The wind is strong. a child",
            "endings": ["lets out the string.", "digs.", "washes a cup.", "sits an exam."],
            "label": "0",
        },
    ],
    "winogrande": [
        {
            "sentence": "The cup fell off the shelf because the _ was crooked.",
            "option1": "cup",
            "option2": "shelf",
            "answer": "2",
        },
        {
            "sentence": "Ann thanked Ruth because _ had been helped.",
            "option1": "Ann",
            "option2": "Ruth",
            "answer": "1",
        },
    ],
    "openbookqa": [
        {
            "id": "c",
            "question_stem": "A plant kept in the dark will",
            "choices": {"text": ["wilt", "sing", "bloom", "run"], "label": ["A", "B", "C", "D"]},
            "answerKey": "A",
        },
        {
            "id": "d",
            "question_stem": "Rain falls from",
            "choices": {
                "text": ["rock", "roots", "clouds", "ash"],
                "label": ["A", "B", "C", "D"],
            },
            "answerKey": "C",
        },
    ],
    "siqa": [
        {
            "context": "Robin lent Kim a coat.",
            "question": "How would Kim feel?",
            "answerA": "grateful",
            "answerB": "angry",
            "answerC": "hungry",
            "label": "1",
        },
        {
            "context": "Lee missed the last bus.",
            "question": "What will Lee do next?",
            "answerA": "buy a bus",
            "answerB": "walk home",
            "answerC": "wait a year",
            "label": "2",
        },
        {
            "context": "Sam spilled ink on the rug.",
            "question": "What will Sam do next?",
            "answerA": "read",
            "answerB": "dance",
            "answerC": "clean the rug",
            "label": "3",
        },
        {
            "context": "Jo won the race.",
            "question": "How would others feel?",
            "answerA": "impressed",
            "answerB": "cold",
            "answerC": "thirsty",
            "label": "1",
        },
        {
            "context": "Pat gave the dog a bath.",
            "question": "Why did Pat do this?",
            "answerA": "to paint it",
            "answerB": "to get it clean",
            "answerC": "to teach it",
            "label": "2",
        },
    ],
}
HUB["arc_challenge"] = HUB["arc_easy"]

FLAT: dict[str, list[dict[str, Any]]] = {
    "piqa": [
        {
            "query": f"Question: {row['goal']}\n",
            "choices": [row["sol1"], row["sol2"]],
            "gold": row["label"],
        }
        for row in HUB["piqa"]
    ],
    "arc_easy": [
        {
            "query": f"Question: {row['question']}",
            "choices": row["choices"]["text"],
            "gold": row["choices"]["label"].index(row["answerKey"]),
        }
        for row in HUB["arc_easy"]
    ],
    "winogrande": [
        {
            "context_options": [
                row["sentence"].partition("_")[0] + row[option] for option in ("option1", "option2")
            ],
            "continuation": row["sentence"].partition("_")[2].strip(),
            "gold": int(row["answer"]) - 1,
        }
        for row in HUB["winogrande"]
    ],
    "openbookqa": [
        {
            "query": row["question_stem"],
            "choices": row["choices"]["text"],
            "gold": row["choices"]["label"].index(row["answerKey"]),
        }
        for row in HUB["openbookqa"]
    ],
}
FLAT["arc_challenge"] = FLAT["arc_easy"]

FILES = {"lambada": "lambada_openai", "wikitext": "wikitext2_test", "openbookqa": "openbook_qa"}


def write(folder: Path, rows: dict[str, list[dict[str, Any]]] = HUB) -> Path:
    """A directory of task data in JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, lines in rows.items():
        path = folder / f"{FILES.get(task, task)}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
