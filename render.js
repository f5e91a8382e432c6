// Runs inside a loaded page (render.py): brings it to rest, measures its height and, if wanted, its layout. The page's
// own scripts never ran, but its names can hide built-in ones of the document and of forms
// (<form name=querySelectorAll>). So we take those from their prototypes.
want_layout => {
  const all = selector => Document.prototype.querySelectorAll.call(document, selector);
  const create = tag => Document.prototype.createElement.call(document, tag);
  const get = (node, name) => Reflect.get(Element.prototype, name, node);
  const [root, body] = ['documentElement', 'body'].map(name => Reflect.get(Document.prototype, name, document));
  for (const old of all('marquee')) {                       // turn a marquee into a plain block
    const still = create('div');
    while (old.firstChild) still.appendChild(old.firstChild);
    old.replaceWith(still);
  }
  // A progress bar without a value moves by its own timer.
  for (const bar of all('progress:indeterminate')) bar.setAttribute('value', 0);
  // Without scripts a player always shows controls, with a spinner while its film loads.
  if (all('video, audio').length) {
    const style = create('style');
    style.textContent = '*::-webkit-media-controls {display: none !important}';
    root.appendChild(style);
  }
  // Show an animation at its end if it has one, otherwise at its start.
  for (const animation of Document.prototype.getAnimations.call(document)) {
    const ends = () => isFinite(animation.effect.getComputedTiming().endTime);
    try { ends() ? animation.finish() : animation.cancel(); } catch { animation.cancel(); }
  }
  for (const svg of all('svg')) {
    try {
      svg.pauseAnimations();
      svg.setCurrentTime(0);
    } catch {}
  }
  // Scripts that make what is seen: a library of styles, or those that fill an empty element of the page.
  const runs = /^(|module|.*(java|ecma)script|text\/(jsx|babel))$/i;    // not JSON and the like
  const scripts = [...all('script')].filter(s => runs.test(s.type || ''));
  const code = scripts.map(s => get(s, 'textContent')).join(' '), far = scripts.some(s => s.src);
  const filled = [...all('body [id]:empty:not(script, style, img, input, br, hr, iframe, canvas, svg *)')];
  const needs_scripts = scripts.some(s => /tailwind|twind|unocss|windi/i.test(s.src)) ||
    /document\.write(ln)?\(/.test(code) || filled.some(e => far || code.includes(e.getAttribute('id'))) ||
    scripts.length > 0 && (/\{\{/.test(body && body.innerText) || all('[v-for], [x-for], [x-text], [v-text]').length) ||
    scripts.length > 0 && !(body && body.innerText.trim()) && !all('img, svg, video, canvas, input').length;
  const page = {height: Math.max(root.scrollHeight, body ? body.scrollHeight : 0), scripts: needs_scripts};
  if (!want_layout) return page;
  const pixel = create('canvas').getContext('2d', {willReadFrequently: true});
  const hex = colour => {                                    // "rgb(1, 2, 3)" -> "#010203"; transparent -> null
    let channels = (colour.match(/[\d.]+/g) || []).map(Number);
    if (!colour.startsWith('rgb')) {                         // oklch(...), color(srgb ...): as drawn
      pixel.clearRect(0, 0, 1, 1);
      pixel.fillStyle = colour;
      pixel.fillRect(0, 0, 1, 1);
      channels = [...pixel.getImageData(0, 0, 1, 1).data];
      channels[3] /= 255;
    }
    if (channels[3] < 0.1) return null;
    return '#' + channels.slice(0, 3).map(v => Math.round(v).toString(16).padStart(2, '0')).join('');
  };
  const rounded = r => [r.left + scrollX, r.top + scrollY, r.width, r.height].map(Math.round);
  const drawn = new Set(['IMG', 'SVG', 'VIDEO', 'CANVAS', 'INPUT', 'SELECT', 'TEXTAREA', 'BUTTON', 'HR', 'IFRAME']);
  const landmarks = new Set(['HEADER', 'NAV', 'MAIN', 'SECTION', 'ARTICLE', 'ASIDE', 'FOOTER', 'FORM']);
  const plain = /^(SPAN|B|STRONG|EM|I|SMALL|U|DIV|P|FONT)$/, telling = /^(H[1-6]|A|LI|LABEL|TH|TD)$/;
  const inside = new Set();                                  // inline elements within a text, which belong to it
  const index = new Map(), elements = [], listed = new Map();    // listed: node -> the nearest element of the list
  // A picture is a picture, wherever it is from; gradients differ by their colours.
  const behind = style =>
    style.backgroundImage === 'none' ? '' : style.backgroundImage.replace(/url\([^)]*\)/g, 'url').slice(0, 300);
  let background = null, gradient = '';
  for (const e of [root, body].filter(Boolean)) {
    background = hex(getComputedStyle(e).backgroundColor) || background;
    gradient = behind(getComputedStyle(e)) || gradient;
  }
  for (const e of all('body *')) {
    if (elements.length >= 2000) break;
    const up = listed.get(get(e, 'parentNode')) || null;
    listed.set(e, up);
    let tag = get(e, 'tagName').toUpperCase();
    const style = getComputedStyle(e);
    if (inside.has(get(e, 'parentNode'))) inside.add(e);
    if (inside.has(e)) continue;
    const box = Element.prototype.getBoundingClientRect.call(e);
    if (style.visibility !== 'visible' || Number(style.opacity) < 0.05 || box.width < 1 || box.height < 1) continue;
    if (tag !== 'SVG' && e instanceof SVGElement) continue;   // an SVG counts as one element
    let text = '', ink = null;
    const children = [...get(e, 'childNodes')], own = children.some(c => c instanceof Text && c.data.trim());
    for (const child of children) {
      let words = child instanceof Text ? child.data.trim() : '';
      if (own && child instanceof HTMLElement && getComputedStyle(child).display === 'inline' &&
          !drawn.has(get(child, 'tagName')) && !hex(getComputedStyle(child).backgroundColor) &&
          !Element.prototype.querySelector.call(child, 'img, svg, video, canvas, input, button')) {
        words = get(child, 'textContent').trim();
        inside.add(child);
      }
      if (!words) continue;
      text += (text ? ' ' : '') + words;
      const range = new Range();
      range.selectNodeContents(child);
      const r = range.getBoundingClientRect(), so_far = ink || r;
      ink = {left: Math.min(so_far.left, r.left), top: Math.min(so_far.top, r.top),
             right: Math.max(so_far.right, r.right), bottom: Math.max(so_far.bottom, r.bottom)};
    }
    if (!text && ['INPUT', 'TEXTAREA'].includes(tag))
      text = e.getAttribute('placeholder') || e.getAttribute('value') || '';
    const border = ['Top', 'Bottom', 'Left'].some(side => parseFloat(style[`border${side}Width`]) > 0);
    const fill = hex(style.backgroundColor), picture = style.backgroundImage !== 'none';
    if (!text && !fill && !picture && !border && !drawn.has(tag) && !landmarks.has(tag)) continue;
    for (let n = get(e, 'parentNode'); text && plain.test(tag) && n !== body && n !== root && !index.has(n);
         n = get(n, 'parentNode'))
      if (telling.test(get(n, 'tagName'))) tag = get(n, 'tagName');    // <h1><span>...</span></h1> is a heading
    index.set(e, elements.length);
    listed.set(e, e);
    const inked = ink && {left: ink.left, top: ink.top, width: ink.right - ink.left, height: ink.bottom - ink.top};
    elements.push({
      tag: tag.toLowerCase(), order: elements.length, parent: up ? index.get(up) : null,
      text: text.replace(/\s+/g, ' ').slice(0, 300), box: rounded(box), text_box: inked ? rounded(inked) : null,
      colour: hex(style.color), background: fill, gradient: behind(style), border,
      font_size: Math.round(parseFloat(style.fontSize)), bold: Number(style.fontWeight) >= 600});
  }
  return {...page, width: innerWidth, background: background || '#ffffff', gradient, elements};
}
