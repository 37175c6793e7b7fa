"use strict";
// What was on this page before it became the story is in the lab book, under the same address.
if (/^#(?!see-|top$)[A-Za-z][\w-]*$/.test(location.hash)) location.replace("labbook.html" + location.hash);
