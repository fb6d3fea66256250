-- What Pandoc cannot know of the book: a question has a frame, and a picture says what it shows.

function Div(element)
  if element.classes:includes("question") then
    element.content:insert(1, pandoc.RawBlock("typst", "#question["))
    element.content:insert(pandoc.RawBlock("typst", "]"))
  end
  return element.content
end

function Image(element)
  local alt = pandoc.utils.stringify(element.caption):gsub('[\\"]', "\\%0")
  return pandoc.RawInline("typst", ('#picture("%s", "%s")'):format(element.src, alt))
end
