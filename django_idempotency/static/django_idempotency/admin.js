// Shows the buttons that copy a text. Without this script, the text can still be selected.
(() => {
    "use strict";

    async function copy(button) {
        const text = button.dataset.copy;
        if (navigator.clipboard) {
            await navigator.clipboard.writeText(text);
        } else {
            // Not over HTTPS: browsers have no other way there.
            getSelection().selectAllChildren(button.previousElementSibling);
            document.execCommand("copy");
        }
        button.textContent = button.dataset.copied;
        button.nextElementSibling.textContent = button.dataset.copied;
    }

    document.addEventListener("DOMContentLoaded", () => {
        for (const button of document.querySelectorAll(".idempotency-copy")) {
            button.hidden = false;
            // Screen readers announce what changes here.
            const told = document.createElement("span");
            told.setAttribute("role", "status");
            told.className = "visually-hidden";
            button.after(told);
            button.addEventListener("click", () => copy(button));
        }
    });
})();
